package controlplane

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync/atomic"
	"syscall"
	"time"
)

// process is a component that was started.
type process struct {
	name    string
	cmd     *exec.Cmd
	logPath string
	asked   atomic.Bool   // to stop
	exited  chan struct{} // closed once err is set
	err     error         // why the process ended; read after exited
}

// startProcess starts a component whose output is appended to logPath. It gets SIGKILL when the calling thread ends.
func startProcess(name, binary string, args []string, logPath string) (*process, error) {
	out, err := os.OpenFile(logPath, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	defer out.Close()
	cmd := exec.Command(binary, args...)
	cmd.Stdout, cmd.Stderr = out, out
	// A process group of its own, so that Ctrl-C reaches the test first.
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	p := &process{name: name, cmd: cmd, logPath: logPath, exited: make(chan struct{})}
	go func() {
		p.err = cmd.Wait()
		close(p.exited)
	}()
	return p, nil
}

// signal sends a signal to the process, and makes its end an expected one.
func (p *process) signal(sig syscall.Signal) {
	p.asked.Store(true)
	// An error means that the process has gone, as it should.
	_ = p.cmd.Process.Signal(sig)
}

// stop ends the process, by force if it takes longer than grace, and returns when it has
// gone.
func (p *process) stop(grace time.Duration) {
	p.signal(syscall.SIGTERM)
	select {
	case <-p.exited:
	case <-time.After(grace):
		p.signal(syscall.SIGKILL)
		<-p.exited
	}
}

func (p *process) dead() bool {
	select {
	case <-p.exited:
		return true
	default:
		return false
	}
}

// wait returns when the process has gone: nil if its end was expected.
func (p *process) wait() error {
	<-p.exited
	if p.asked.Load() {
		return nil
	}
	return p.exitError()
}

// exitError describes the end of a process that has gone.
func (p *process) exitError() error {
	<-p.exited
	why := "exit status 0"
	if p.err != nil {
		why = p.err.Error()
	}
	return fmt.Errorf("%s ended: %s; end of its log:\n%s", p.name, why, p.logTail())
}

// logTail returns the last lines of the log, 4 KiB at most.
func (p *process) logTail() string {
	f, err := os.Open(p.logPath)
	if err != nil {
		return err.Error()
	}
	defer f.Close()
	size, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return err.Error()
	}
	start := max(0, size-4096)
	tail, err := io.ReadAll(io.NewSectionReader(f, start, size-start))
	if err != nil {
		return err.Error()
	}
	if start > 0 {
		if _, rest, ok := bytes.Cut(tail, []byte("\n")); ok {
			tail = rest
		}
	}
	return string(tail)
}
