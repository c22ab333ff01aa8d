package watchers

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"
)

// process is a worker as a process of its own, in the network of the API server.
type process struct {
	count   int
	cmd     *exec.Cmd
	ask     io.WriteCloser
	answers *bufio.Reader
}

func (s *site) startWorker(ctx context.Context, count int) (*process, error) {
	args := append(s.Worker[1:len(s.Worker):len(s.Worker)], s.plane.Cluster.AdminKubeconfig(), strconv.Itoa(count))
	p := &process{count: count, cmd: exec.CommandContext(ctx, s.Worker[0], args...)}
	p.cmd.Env, p.cmd.Stderr = append(os.Environ(), s.Env...), os.Stderr
	ask, askErr := p.cmd.StdinPipe()
	answers, answersErr := p.cmd.StdoutPipe()
	if err := errors.Join(askErr, answersErr); err != nil {
		return nil, err
	}
	p.ask, p.answers = ask, bufio.NewReader(answers)
	if err := s.plane.NS.Start(p.cmd); err != nil {
		return nil, fmt.Errorf("start the watchers: %w", err)
	}
	return p, nil
}

// totals asks the worker.
func (p *process) totals() (totals, error) { return p.say("") }

// say writes a line, and returns the answer.
func (p *process) say(line string) (t totals, err error) {
	_, err = fmt.Fprintln(p.ask, line)
	if err == nil {
		var answer []byte
		if answer, err = p.answers.ReadBytes('\n'); err == nil {
			err = json.Unmarshal(answer, &t)
		}
	}
	if err != nil {
		return t, fmt.Errorf("ask the watchers: %w", err)
	}
	return t, nil
}

// askPeriod is the time between two questions.
const askPeriod = 20 * time.Millisecond

// await asks until the totals are as wanted. It gives up after the time that a cell of the benchmarks may take.
func (p *process) await(ctx context.Context, wanted func(totals) bool) (totals, error) {
	const patience = 5 * time.Minute
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		t, err := p.totals()
		if err != nil || wanted(t) {
			return t, err
		}
		if err := pause(ctx, askPeriod); err != nil {
			return t, fmt.Errorf("wait for the watchers, which have %+v: %w", t, err)
		}
	}
}

func (p *process) stop() error {
	if err := p.ask.Close(); err != nil {
		return err
	}
	if err := p.cmd.Wait(); err != nil {
		return fmt.Errorf("the watchers: %w", err)
	}
	return nil
}

// peakMemory is the most memory that a process has had.
func peakMemory(pid int) (int64, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(b)) {
		if rest, found := strings.CutPrefix(line, "VmHWM:"); found {
			kilobytes, err := strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
			return kilobytes << 10, err
		}
	}
	return 0, fmt.Errorf("process %d: no VmHWM in its status", pid)
}
