package result_test

import (
	"slices"
	"strings"
	"testing"

	"nftproxy/bench/result"
)

const secondsTable = `# a comment, with a comma
clients,second,requests,slow,failed
"kept connections, 3 endpoints",1,10,5,5
"new connections, 3 endpoints",0,1000,0,7
"new connections, 3 endpoints",1,100,10,20
"new connections, 3 endpoints",3,100,0,0
"new connections, 30 endpoints",1,100,0,30
`

func TestReadSeconds(t *testing.T) {
	shares, err := result.ReadSeconds(strings.NewReader(secondsTable), "new connections")
	if want := []float64{0.3, 0, 0}; err != nil || !slices.Equal(shares, want) {
		t.Errorf("%v, %v; want %v", shares, err, want)
	}
	for _, table := range []string{"", "clients,second,requests,slow,failed\n", "a,b\nnew connections,x\n", "a\n\"b"} {
		if shares, err := result.ReadSeconds(strings.NewReader(table), "new connections"); err == nil {
			t.Errorf("%q: %v, no error", table, shares)
		}
	}
}

// A line has a step for each second, and its name says what all seconds make together.
func TestDrawSeconds(t *testing.T) {
	lines := []result.Seconds{{Backend: "nftproxy", Name: "ours", Shares: []float64{0.5, 0}},
		{Backend: "off", Name: "theirs <b>", Shares: []float64{1, 1}}, {Backend: "on", Name: "told", Shares: []float64{1},
			Told: "all of it"}}
	picture := string(result.DrawSeconds("title", "about", "axis", lines))
	for _, want := range []string{"<title id=\"title\">title</title>", "ours: 25 % of all connections. theirs " +
		"&lt;b&gt;: 100 % of all connections. told: all of it.", "line-1"} {
		if !strings.Contains(picture, want) {
			t.Errorf("lacks %q:\n%s", want, picture)
		}
	}
	if again := string(result.DrawSeconds("title", "about", "axis", lines)); again != picture {
		t.Error("another picture of the same lines")
	}
}
