package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"

	"nftproxy/test/lib/child"
	"nftproxy/test/lib/testnet"
)

// patience is how long the demo waits for an event that should take milliseconds.
const patience = 10 * time.Second

// syncReport is nftproxy's log line about a sync.
type syncReport struct {
	Services, Written                   int
	Latency, Compile, Read, Plan, Apply child.Duration
	// at is when the demo read the line.
	at time.Time
}

// parts has the durations of the sync's stages.
func (r syncReport) parts() time.Duration {
	return time.Duration(r.Compile + r.Read + r.Plan + r.Apply)
}

// begun is the latest time at which the sync can have begun.
func (r syncReport) begun() time.Time { return r.at.Add(-r.parts()) }

// process is a running nftproxy.
type process struct {
	cmd *exec.Cmd
	// ended is closed once the process has ended and its log is read; then err says how
	// it ended.
	ended chan struct{}
	err   error
	// news holds a token while there are unread reports. following is closed once it follows connections.
	news      chan struct{}
	following chan struct{}
	once      sync.Once // that closes it

	mu      sync.Mutex
	reports []syncReport
	// warnings are the last lines of the log with the level warning or above.
	warnings []string
}

// startProcess runs nftproxy in a network namespace. The kernel kills it if the demo
// dies. It is in a process group of its own, so that Ctrl-C reaches the demo alone, and
// the demo stops it.
func startProcess(ns *testnet.Namespace, executable string, args ...string) (*process, error) {
	cmd := exec.Command(executable, args...)
	cmd.Args[0] = "nftproxy"
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	log, err := cmd.StderrPipe()
	if err != nil {
		return nil, fmt.Errorf("start nftproxy: %w", err)
	}
	if err := ns.Start(cmd); err != nil {
		return nil, fmt.Errorf("start nftproxy: %w", err)
	}
	p := &process{cmd: cmd, ended: make(chan struct{}), news: make(chan struct{}, 1),
		following: make(chan struct{})}
	go func() {
		defer close(p.ended)
		p.follow(log)
		p.err = cmd.Wait()
	}()
	return p, nil
}

// follow reads the log to its end.
func (p *process) follow(log io.Reader) {
	lines := bufio.NewReader(log)
	for {
		line, err := lines.ReadString('\n')
		if line != "" {
			p.note(strings.TrimSpace(line))
		}
		if err != nil {
			return
		}
	}
}

func (p *process) note(line string) {
	var entry struct {
		Level, Msg, Err string
		syncReport
	}
	entry.at = time.Now()
	bad := json.Unmarshal([]byte(line), &entry)
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case bad != nil:
		p.warn(line) // a panic's trace, for example
	case entry.Msg == "synced":
		p.reports = append(p.reports, entry.syncReport)
		select {
		case p.news <- struct{}{}:
		default:
		}
	case entry.Msg == "following connections":
		p.once.Do(func() { close(p.following) })
	case entry.Level == "WARN" || entry.Level == "ERROR":
		p.warn(strings.TrimRight(entry.Msg+": "+entry.Err, ": "))
	}
}

// warn keeps the first lines: they have the cause.
func (p *process) warn(line string) {
	const most = 12
	if len(p.warnings) < most {
		p.warnings = append(p.warnings, line)
	}
}

func (p *process) complaints() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.warnings
}

// next waits for the next unread report.
func (p *process) next(ctx context.Context) (syncReport, error) {
	timeout := time.NewTimer(patience)
	defer timeout.Stop()
	for {
		if r, ok := p.nextReport(); ok {
			return r, nil
		}
		select {
		case <-p.news:
		case <-ctx.Done():
			return syncReport{}, context.Cause(ctx)
		case <-p.ended:
			return syncReport{}, p.alive()
		case <-timeout.C:
			return syncReport{}, &mismatch{"nftproxy's log", "a sync", fmt.Sprintf("none in %v", patience)}
		}
	}
}

// awaitFollowing waits until it follows connections.
func (p *process) awaitFollowing(ctx context.Context) error {
	timeout := time.NewTimer(patience)
	defer timeout.Stop()
	select {
	case <-p.following:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-p.ended:
		return p.alive()
	case <-timeout.C:
		return &mismatch{"nftproxy's log", "that it follows connections", fmt.Sprintf("nothing in %v", patience)}
	}
}

// nextReport removes the oldest report and returns it, if there is one.
func (p *process) nextReport() (syncReport, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.reports) == 0 {
		return syncReport{}, false
	}
	r := p.reports[0]
	p.reports = p.reports[1:]
	return r, true
}

// alive returns an error if the proxy has ended. Most steps would still succeed then,
// since the rules stay.
func (p *process) alive() error {
	select {
	case <-p.ended:
		return &mismatch{"nftproxy", "that it runs on", "its end: " + endText(p.err)}
	default:
		return nil
	}
}

// stop asks the process to end, as a kubelet does, and waits. It returns an error if the
// end was not clean, or came before the request.
func (p *process) stop() error {
	switch err := p.cmd.Process.Signal(syscall.SIGTERM); {
	case errors.Is(err, os.ErrProcessDone):
		<-p.ended
		return p.alive()
	case err != nil:
		return fmt.Errorf("stop nftproxy: %w", err)
	}
	select {
	case <-p.ended:
	case <-time.After(patience):
		err := errors.Join(fmt.Errorf("stop nftproxy: still there %v after SIGTERM", patience), p.cmd.Process.Kill())
		<-p.ended
		return err
	}
	if p.err != nil {
		return fmt.Errorf("stop nftproxy: %w", p.err)
	}
	return nil
}

func endText(err error) string {
	if err == nil {
		return "exit status 0"
	}
	return err.Error()
}
