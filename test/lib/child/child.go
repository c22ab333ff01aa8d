// Package child promises a program as a child process in a network namespace, with the
// lines of its log as they come, so that a test can wait for a line. The kernel kills
// the child when this process dies, in whatever way.
//
// The package parses the lines of nftproxy's log, and keeps those of other programs as
// text. It checks nothing.
package child

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"
)

// ErrEnded says that the child has ended before the awaited line.
var ErrEnded = errors.New("the process ended")

// Namespace is where a child runs.
type Namespace interface {
	// Do calls a function on a thread that is in the namespace.
	Do(func() error) error
}

// Line is one line of a log: of JSON where the program writes that.
type Line struct {
	Text string `json:"-"`
	// At is when it was read.
	At    time.Time `json:"-"`
	Level string
	Msg   string
	Err   string
	// Of "synced".
	Services                                            *int
	Written                                             *int
	Latency, Compile, Read, Plan, Apply, Encode, Commit Duration
}

// Duration is a time.Duration that is read as time.ParseDuration does.
type Duration time.Duration

// UnmarshalText is part of encoding.TextUnmarshaler.
func (d *Duration) UnmarshalText(text []byte) error {
	read, err := time.ParseDuration(string(text))
	*d = Duration(read)
	return err
}

func (d Duration) String() string { return time.Duration(d).String() }

// Has says whether a line has all of the words, however it escapes quotes.
func (l Line) Has(words ...string) bool {
	text := strings.ReplaceAll(l.Text, `\"`, `"`)
	for _, w := range words {
		if !strings.Contains(text, w) {
			return false
		}
	}
	return true
}

// Synced says that a line of nftproxy's is about a sync.
func (l Line) Synced() bool { return l.Msg == "synced" }

// Process is a child. Its methods are safe for concurrent use.
type Process struct {
	cmd    *exec.Cmd
	exited chan struct{} // closed once err is set
	err    error         // what Wait said

	mu      sync.Mutex
	rest    []byte // of a line that is not complete
	lines   []Line
	changed chan struct{} // closed and replaced when lines arrive
}

// Start starts a command in the namespace, with its output and errors as log and
// in a process group of its own.
func Start(ns Namespace, cmd *exec.Cmd) (*Process, error) {
	p := &Process{cmd: cmd, exited: make(chan struct{}), changed: make(chan struct{})}
	log := logWriter{p}
	cmd.Stdout, cmd.Stderr = log, log
	if cmd.SysProcAttr == nil { // it may ask for namespaces of its own
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Setpgid, cmd.SysProcAttr.Pdeathsig = true, syscall.SIGKILL
	started := make(chan error, 1)
	go func() {
		defer close(p.exited)
		// The signal at the parent's death is bound to this thread, which must
		// not end before the child.
		p.err = ns.Do(func() error {
			err := cmd.Start()
			started <- err
			if err != nil {
				return err
			}
			return cmd.Wait()
		})
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", cmd, err)
	}
	return p, nil
}

// logWriter takes what the process writes.
type logWriter struct{ *Process }

func (w logWriter) Write(b []byte) (int, error) {
	now := time.Now()
	p := w.Process
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rest = append(p.rest, b...)
	for {
		text, rest, found := bytes.Cut(p.rest, []byte("\n"))
		if !found {
			break
		}
		l := Line{}
		_ = json.Unmarshal(text, &l) // other lines are there as text
		l.Text, l.At = string(text), now
		p.lines, p.rest = append(p.lines, l), rest
	}
	close(p.changed)
	p.changed = make(chan struct{})
	return len(b), nil
}

// PID is the child's process ID.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// String is the command line.
func (p *Process) String() string { return p.cmd.String() }

// Exited is closed when the child has ended.
func (p *Process) Exited() <-chan struct{} { return p.exited }

// Ended says whether it has.
func (p *Process) Ended() bool {
	select {
	case <-p.exited:
		return true
	default:
		return false
	}
}

// Err is how the child ended; nil while it runs, and for a clean exit.
func (p *Process) Err() error {
	if !p.Ended() {
		return nil
	}
	return p.err
}

// State is the kernel's record of a child that has ended; nil while it runs.
func (p *Process) State() *os.ProcessState {
	if !p.Ended() {
		return nil
	}
	return p.cmd.ProcessState
}

// Logged returns the lines from a mark on, and a channel that is closed when there are
// more.
func (p *Process) Logged(from int) ([]Line, <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.lines[from:len(p.lines):len(p.lines)], p.changed
}

// Mark is the present end of the log.
func (p *Process) Mark() int {
	lines, _ := p.Logged(0)
	return len(lines)
}

// Await returns the first line from a mark on that matches, and the mark after
// it. The error matches ErrEnded when the child ends without one, or is the
// context's.
func (p *Process) Await(ctx context.Context, from int, match func(Line) bool) (Line, int, error) {
	for ended := false; ; {
		lines, changed := p.Logged(from)
		for i, l := range lines {
			if match(l) {
				return l, from + i + 1, nil
			}
		}
		from += len(lines)
		if ended {
			return Line{}, from, fmt.Errorf("%w: %v", ErrEnded, p.err)
		}
		select {
		case <-changed:
		case <-p.exited:
			ended = true
		case <-ctx.Done():
			return Line{}, from, ctx.Err()
		}
	}
}

// Stop ends the child as a kubelet does, by SIGTERM, and returns its error. When
// the context ends before it does, it is killed.
func (p *Process) Stop(ctx context.Context) error {
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("stop %s: %w", p.cmd, err)
	}
	select {
	case <-p.exited:
		return p.err
	case <-ctx.Done():
		return errors.Join(fmt.Errorf("stop %s: %w", p.cmd, ctx.Err()), p.Kill())
	}
}

// Kill ends the child and the processes that it started.
func (p *Process) Kill() error {
	if p.Ended() {
		return nil
	}
	if err := syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("kill %s: %w", p.cmd, err)
	}
	<-p.exited
	return nil
}

// Tail is the end of the log.
func (p *Process) Tail(most int) string {
	lines, _ := p.Logged(0)
	var b strings.Builder
	for _, l := range lines[max(0, len(lines)-most):] {
		fmt.Fprintln(&b, l.Text)
	}
	return b.String()
}
