package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/term"
)

// screenWidth is the most columns of the output.
const screenWidth = 80

// screen shows the scenario line by line. On a terminal it also has a line that shows the
// running step.
type screen struct {
	out   io.Writer
	live  bool // a terminal on which the cursor can return to the start of a line
	style style
}

// newScreen finds out what the output can show. It reads the environment by getenv.
func newScreen(out io.Writer, getenv func(string) string) *screen {
	f, ok := out.(*os.File)
	live := ok && term.IsTerminal(int(f.Fd())) && getenv("TERM") != "dumb"
	return &screen{out: out, live: live, style: newStyle(live, getenv)}
}

func newStyle(live bool, getenv func(string) string) style {
	return style{
		// https://no-color.org: any value but the empty one.
		color:   live && getenv("NO_COLOR") == "",
		unicode: showsUnicode(getenv),
	}
}

// showsUnicode says whether the locale's character set is UTF-8. Without a locale, as in
// most containers, it assumes UTF-8.
func showsUnicode(getenv func(string) string) bool {
	for _, name := range []string{"LC_ALL", "LC_CTYPE", "LANG"} {
		if v := strings.ToLower(getenv(name)); v != "" {
			return strings.Contains(v, "utf-8") || strings.Contains(v, "utf8")
		}
	}
	return true
}

func (s *screen) line(text string) { fmt.Fprintln(s.out, text) }

// show prints blocks, indented below their step's title.
func (s *screen) show(blocks ...block) {
	const indent = 5
	for _, b := range blocks {
		for _, l := range b.lines(s.style, screenWidth-indent) {
			s.line(strings.Repeat(" ", indent) + l)
		}
	}
}

// begin announces a step. Until the step has ended, the screen shows the step's progress.
func (s *screen) begin(number, of int, title string) *progress {
	p := &progress{screen: s, label: fmt.Sprintf("%2d/%d", number, of), title: title, start: time.Now()}
	s.line("")
	if !s.live {
		s.line(fmt.Sprintf("%s  %s ...", p.label, title))
		return p
	}
	p.stop, p.stopped = make(chan struct{}), make(chan struct{})
	go p.spin()
	return p
}

// progress is a step that is under way.
type progress struct {
	screen       *screen
	label, title string
	start        time.Time

	stop, stopped chan struct{}
	mu            sync.Mutex
	detail        string
}

// setText sets the line that shows the step's progress. It may be called from any
// goroutine.
func (p *progress) setText(format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.detail = fmt.Sprintf(format, args...)
}

func (p *progress) spin() {
	defer close(p.stopped)
	tick := time.NewTicker(80 * time.Millisecond)
	defer tick.Stop()
	frames := []rune(`-\|/`)
	if p.screen.style.unicode {
		frames = []rune("⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏")
	}
	for i := 0; ; i++ {
		p.draw(frames[i%len(frames)])
		select {
		case <-p.stop:
			return
		case <-tick.C:
		}
	}
}

func (p *progress) draw(frame rune) {
	p.mu.Lock()
	detail := p.detail
	p.mu.Unlock()
	took := time.Since(p.start).Seconds()
	line := fmt.Sprintf("  %c  %s  %.1f s", frame, p.title, took)
	if detail != "" {
		line += "  " + detail
	}
	if r := []rune(line); len(r) >= screenWidth {
		line = string(r[:screenWidth-1])
	}
	fmt.Fprintf(p.screen.out, "\r\x1b[K%s", line)
}

// outcome is how a step ended.
type outcome struct {
	word          string // not on a terminal
	sign, inASCII string // on a terminal
	paint         func(style, string) string
}

func succeeded() outcome { return outcome{"ok", "✓", "+", style.good} }
func failed() outcome    { return outcome{"FAILED", "✗", "x", style.bad} }
func cutShort() outcome  { return outcome{"interrupted", "–", "-", style.faint} }

// end shows the outcome of the step and its duration.
func (p *progress) end(o outcome) {
	s := p.screen
	took := elapsed(time.Since(p.start))
	if !s.live {
		s.line(fmt.Sprintf("     %s, %s", o.word, took))
		return
	}
	close(p.stop)
	<-p.stopped
	sign := o.inASCII
	if s.style.unicode {
		sign = o.sign
	}
	const signColumns = 5
	s.line("\r\x1b[K  " + o.paint(s.style, sign) + "  " +
		s.style.bold(pad(p.title, screenWidth-signColumns-columns(took))) + s.style.faint(took))
}

func elapsed(d time.Duration) string {
	if d < time.Second {
		return fmt.Sprintf("%d ms", d.Milliseconds())
	}
	return fmt.Sprintf("%.1f s", d.Seconds())
}
