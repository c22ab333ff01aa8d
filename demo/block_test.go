package main

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"nftproxy/test/lib/testnet"
)

func TestBlocks(t *testing.T) {
	plain, colour := style{unicode: true}, style{unicode: true, color: true}
	bars := []bar{{"a", 8}, {"bcd", 40}, {"e", 0}}
	for _, test := range []struct {
		name  string
		block block
		style style
		width int
		want  string
	}{
		{"text that fits", text("one two"), plain, 7, "one two"},
		{"text that is wrapped", text("one two three"), plain, 9, "one two\nthree"},
		{"a word that is too long", text("a incomprehensible b"), plain, 5, "a\nincomprehensible\nb"},
		{"empty text", text(""), plain, 5, ""},
		{
			"chart", chart{groups: []group{{"title", bars}}}, plain, 17, `
title
a   ██  8
bcd ██████████ 40
e     0`,
		},
		{"chart in ASCII", chart{groups: []group{{"title", bars}}}, style{}, 17, `
title
a   ##  8
bcd ########## 40
e     0`},
		{"eighths", chart{groups: []group{{"t", []bar{{"a", 16}, {"b", 11}, {"c", 1}}}}}, plain, 7, `
t
a ██ 16
b █▍ 11
c ▏  1`},
		{"charts of one scale side by side", chart{beside: 2, groups: []group{
			{"left", []bar{{"a", 8}, {"b", 4}}}, {"right", []bar{{"c", 2}}}, {"below", []bar{{"d", 8}}},
		}}, plain, 27, `
left           right
a ████████ 8   c ██ 2
b ████ 4
below
d ████████ 8`},
		{"colour is not counted", chart{beside: 2, groups: []group{
			{"left", []bar{{"a", 1}}}, {"right", []bar{{"b", 1}}},
		}}, colour, 15, "\n\x1b[2mleft\x1b[0m     \x1b[2mright\x1b[0m\n" +
			"a \x1b[36m██\x1b[0m 1   b \x1b[36m██\x1b[0m 1"},
		{"chart of nothing", chart{groups: []group{{"t", []bar{{"a", 0}}}}}, plain, 20, "\nt\na  0"},
		{"table", table{head: []string{"what", "n"}, rows: [][]string{{"a", "1"}, {"longer", "22"}}, numbers: 1}, plain, 80, `
what     n
a        1
longer  22`},
		{"table without trailing spaces", table{head: []string{"what", "why"}, rows: [][]string{{"a", ""}}, numbers: 2}, plain, 80, `
what  why
a`},
		{"listing", listing("chain a {\n\t\trule that goes on\n\t# note\n}\n"), plain, 14, `
chain a {
    rule \
        that \
        goes \
        on
  # note
}`},
	} {
		t.Run(test.name, func(t *testing.T) {
			got := strings.Join(test.block.lines(test.style, test.width), "\n")
			if diff := cmp.Diff(strings.TrimPrefix(test.want, "\n"), got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// TestChartKeepsItsWidth: no line is longer than the width, whatever the values.
func TestChartKeepsItsWidth(t *testing.T) {
	for _, s := range []style{{}, {unicode: true}} {
		for width := 30; width < 80; width++ {
			for value := 1; value < 2000; value = value*3 + 1 {
				bars := []bar{{"web-1", value}, {"web-10", 300}}
				c := chart{beside: 2, groups: []group{{"x", bars}, {"y", bars}}}
				for _, line := range c.lines(s, width) {
					if columns(line) > width {
						t.Fatalf("%d columns, want at most %d: %q", columns(line), width, line)
					}
				}
			}
		}
	}
}

func TestShorten(t *testing.T) {
	const full = `table ip nftproxy {
	map services {
		typeof x : verdict
		elements = {
			a,
			b,
			c,
			d,
			e,
		}
	}
	set hairpin {
		typeof x
		elements = {
			a,
		}
	}
	chain dispatch {
		drop
	}
	chain output {
		drop
	}
}
`
	const want = `table ip nftproxy {
	map services {
		typeof x : verdict
		elements = {
			a,
			b,
			c,
			# ... and 2 more
		}
	}
	set hairpin { ... }
	chain dispatch {
		drop
	}
	chain output { ... }
}
`
	if diff := cmp.Diff(want, shorten(full)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestStyleFollowsTheEnvironment(t *testing.T) {
	for _, test := range []struct {
		live bool
		env  map[string]string
		want style
	}{
		{false, nil, style{unicode: true}},
		{true, nil, style{unicode: true, color: true}},
		{true, map[string]string{"NO_COLOR": "1"}, style{unicode: true}},
		{true, map[string]string{"NO_COLOR": ""}, style{unicode: true, color: true}},
		{false, map[string]string{"LANG": "C.UTF-8"}, style{unicode: true}},
		{false, map[string]string{"LANG": "de_DE.utf8"}, style{unicode: true}},
		{false, map[string]string{"LANG": "C"}, style{}},
		{false, map[string]string{"LANG": "en_US.UTF-8", "LC_ALL": "POSIX"}, style{}},
		{false, map[string]string{"LANG": "C", "LC_CTYPE": "C.UTF-8"}, style{unicode: true}},
	} {
		if got := newStyle(test.live, func(name string) string { return test.env[name] }); got != test.want {
			t.Errorf("live %v, %v: %+v, want %+v", test.live, test.env, got, test.want)
		}
	}
}

// TestProgress: the progress line goes away when the step has ended. It is never so long
// that the terminal would break it.
func TestProgress(t *testing.T) {
	const clear = "\r\x1b[K"
	for _, test := range []struct {
		screen screen
		how    outcome
		begins string
		ends   string // between title and time
	}{
		{screen{}, succeeded(), "\n 2/11  Title ...\n     ok, ", ""},
		{screen{}, failed(), "\n 2/11  Title ...\n     FAILED, ", ""},
		{screen{}, cutShort(), "\n 2/11  Title ...\n     interrupted, ", ""},
		{screen{live: true}, succeeded(), "\n" + clear + "  -  Title  0.0 s", clear + "  +  Title" + strings.Repeat(" ", 66)},
		{screen{live: true}, failed(), "\n" + clear + "  -  Title  0.0 s", clear + "  x  Title" + strings.Repeat(" ", 66)},
		{screen{live: true, style: style{unicode: true}}, succeeded(), "\n" + clear + "  ⠋  Title  0.0 s",
			clear + "  ✓  Title" + strings.Repeat(" ", 66)},
	} {
		var out strings.Builder
		test.screen.out = &out
		p := test.screen.begin(2, 11, "Title")
		p.end(test.how)
		if got := out.String(); !strings.HasPrefix(got, test.begins) || !strings.Contains(got, test.ends) {
			t.Errorf("%+v: got %q, want it to begin with %q and to have %q", test.screen.style, got, test.begins, test.ends)
		}
	}
	var out strings.Builder
	p := progress{screen: &screen{out: &out, live: true}, title: "Title", start: time.Now()}
	p.setText("%s", strings.Repeat("é", 2*screenWidth))
	p.draw('-')
	if n := columns(strings.TrimPrefix(out.String(), clear)); n != screenWidth-1 {
		t.Errorf("%d columns, want %d: %q", n, screenWidth-1, out.String())
	}
}

func TestMilliseconds(t *testing.T) {
	for d, want := range map[time.Duration]string{
		1234 * time.Nanosecond:   "0.00 ms",
		56 * time.Microsecond:    "0.06 ms",
		1600 * time.Microsecond:  "1.60 ms",
		12340 * time.Microsecond: "12.3 ms",
		time.Second:              "1000 ms",
	} {
		if got := ms(d); got != want {
			t.Errorf("%v: %s, want %s", d, got, want)
		}
	}
}

// TestManifests: the templates have everything that the scenario relies on.
func TestManifests(t *testing.T) {
	addrs := func(n int) testnet.Addrs { return webAddrs()[:n] }
	for _, test := range []struct {
		name      string
		endpoints []endpoint
		want      []string
	}{
		{"none", nil, []string{"endpoints: []"}},
		{"two", []endpoint{{Name: "web-1", Addrs: addrs(2)}, {Name: "web-2", Addrs: addrs(2), Terminating: true}}, []string{
			`addresses: ["172.30.0.10"] # web-1`, `addresses: ["fd00:172::10"] # web-2`,
			"ready: true, serving: true, terminating: false", "ready: false, serving: true, terminating: true",
		}},
	} {
		got, err := renderManifest(embeddedManifests, endpointsFile, state{nodeAddrs: addrs(2), endpoints: test.endpoints})
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range test.want {
			if !strings.Contains(string(got), want) {
				t.Errorf("%s: no %q in:\n%s", test.name, want, got)
			}
		}
	}
}
