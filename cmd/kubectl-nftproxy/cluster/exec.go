package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/client-go/util/exec"
	"k8s.io/streaming/pkg/httpstream"
)

// ExitError says that a command ended with another exit status than 0. What it printed is there all the same.
type ExitError struct {
	Status int
	Stderr string
}

func (e *ExitError) Error() string {
	if text := strings.TrimSpace(e.Stderr); text != "" {
		return text
	}
	return fmt.Sprintf("exit status %d", e.Status)
}

// The path of nftproxy in its image, and how much is kept of what one command prints, in bytes.
const (
	binary    = "/nftproxy"
	maxOutput = 64 << 20
	maxErrors = 64 << 10
)

// Ask runs a command of nftproxy in the node's pod and returns what it prints. The error is an *ExitError if the
// command ended with another exit status than 0.
func (c *Cluster) Ask(ctx context.Context, n *Node, args ...string) ([]byte, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	out := &bounded{most: maxOutput, full: func() {
		cancel(fmt.Errorf("the answer of %s has more than %d MiB", args[0], maxOutput>>20))
	}}
	err := c.Stream(ctx, n, out, nil, args...)
	return out.text(), err
}

// Stream runs a command and writes what it prints to out and errs while it runs. Without errs the error has that text.
// A writer may still be written to after Stream has returned because the context ended.
func (c *Cluster) Stream(ctx context.Context, n *Node, out, errs io.Writer, args ...string) error {
	if err := runs(n); err != nil {
		return err
	}
	kept := &bounded{most: maxErrors, full: func() {}}
	if errs == nil {
		errs = kept
	}
	err := c.run(ctx, n.Pod, Container, remotecommand.StreamOptions{Stdout: out, Stderr: errs}, ours(args))
	return ended(ctx, err, string(kept.text()), args)
}

// Run runs a command in a container of any pod and returns what it prints. The error is as that of Ask.
func (c *Cluster) Run(ctx context.Context, pod *corev1.Pod, container string, command ...string) ([]byte, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	errs := &bounded{most: maxErrors, full: func() {}}
	out := &bounded{most: maxErrors, full: func() {
		cancel(fmt.Errorf("the answer of %s has more than %d KiB", command[0], maxErrors>>10))
	}}
	err := c.run(ctx, pod, container, remotecommand.StreamOptions{Stdout: out, Stderr: errs}, command)
	return out.text(), ended(ctx, err, string(errs.text()), command)
}

// ours is a command of nftproxy.
func ours(args []string) []string { return append([]string{binary}, args...) }

// untilStdinCloses is the flag by which a command that goes on ends on the node, too, when nobody reads it any more.
const untilStdinCloses = "--until-stdin-closes"

// Follow is Stream for a command that goes on: it ends on the node when ctx does. On a node whose nftproxy is older and
// does not know how, it goes on until its own end.
func (c *Cluster) Follow(ctx context.Context, n *Node, out, errs io.Writer, args ...string) error {
	if err := runs(n); err != nil {
		return err
	}
	stdin, closes := io.Pipe()
	defer closes.Close()
	unknown := &withoutLine{to: errs, text: "unknown flag: " + untilStdinCloses}
	options := remotecommand.StreamOptions{Stdin: stdin, Stdout: out, Stderr: unknown}
	err := c.run(ctx, n.Pod, Container, options, ours(slices.Concat(args, []string{untilStdinCloses})))
	unknown.end()
	if unknown.found && ctx.Err() == nil {
		return c.Stream(ctx, n, out, errs, args...)
	}
	return ended(ctx, err, "", args)
}

// ended is the error of a command that has ended.
func ended(ctx context.Context, err error, stderr string, args []string) error {
	switch code := (exec.CodeExitError{}); {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case errors.As(err, &code):
		return &ExitError{Status: code.Code, Stderr: stderr}
	case err != nil:
		return fmt.Errorf("run %s: %w", args[0], err)
	}
	return nil
}

func (c *Cluster) run(ctx context.Context, pod *corev1.Pod, container string, options remotecommand.StreamOptions,
	command []string) error {
	executor, err := c.executor(pod, &corev1.PodExecOptions{Container: container, Stdin: options.Stdin != nil,
		Stdout: true, Stderr: true, Command: command})
	if err != nil {
		return err
	}
	return executor.StreamWithContext(ctx, options)
}

// withoutLine passes on what is written to it, but not the line that has a text.
type withoutLine struct {
	to   io.Writer
	text string

	mu    sync.Mutex
	line  []byte
	found bool
}

func (w *withoutLine) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for part := range bytes.Lines(p) {
		w.line = append(w.line, part...)
		if part[len(part)-1] == '\n' || len(w.line) > maxErrors {
			w.pass()
		}
	}
	return len(p), nil
}

func (w *withoutLine) pass() {
	if bytes.Contains(w.line, []byte(w.text)) {
		w.found = true
	} else {
		_, _ = w.to.Write(w.line) // An error means that nobody reads.
	}
	w.line = nil
}

// end passes on a last line without an end.
func (w *withoutLine) end() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.pass()
}

// executor runs a command as kubectl does: by WebSocket, and with servers or proxies that cannot, by SPDY.
func (c *Cluster) executor(pod *corev1.Pod, options *corev1.PodExecOptions) (remotecommand.Executor, error) {
	request := c.Client.CoreV1().RESTClient().Post().Resource("pods").Namespace(pod.Namespace).Name(pod.Name).
		SubResource("exec").VersionedParams(options, scheme.ParameterCodec)
	socket, err := remotecommand.NewWebSocketExecutor(c.config, "GET", request.URL().String())
	if err != nil {
		return nil, err
	}
	spdy, err := remotecommand.NewSPDYExecutor(c.config, "POST", request.URL())
	if err != nil {
		return nil, err
	}
	return remotecommand.NewFallbackExecutor(socket, spdy, func(err error) bool {
		return httpstream.IsUpgradeFailure(err) || httpstream.IsHTTPSProxyError(err)
	})
}

// runs says why a node cannot be asked.
func runs(n *Node) error {
	switch {
	case n.Pod == nil:
		return errors.New("no pod of nftproxy")
	case n.Pod.Status.Phase != corev1.PodRunning:
		return fmt.Errorf("nftproxy's pod is %s%s", n.Pod.Status.Phase, why(n.Pod))
	}
	for _, s := range n.Pod.Status.ContainerStatuses {
		if s.Name == Container && s.State.Running == nil {
			return fmt.Errorf("nftproxy does not run%s", why(n.Pod))
		}
	}
	return nil
}

// why says what a pod's container waits for, or how it ended.
func why(p *corev1.Pod) string {
	for _, s := range p.Status.ContainerStatuses {
		switch w, t := s.State.Waiting, s.State.Terminated; {
		case w != nil && w.Reason != "":
			return ": " + w.Reason
		case t != nil:
			return fmt.Sprintf(": ended with exit status %d", t.ExitCode)
		}
	}
	return ""
}

// bounded keeps what is written up to a bound, and calls full once when there is more. It is safe for concurrent use.
type bounded struct {
	most int
	full func()

	mu   sync.Mutex
	kept bytes.Buffer
	over bool
}

func (b *bounded) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.over {
		return len(p), nil
	}
	if b.kept.Len()+len(p) > b.most {
		b.over = true
		b.full()
		return len(p), nil
	}
	return b.kept.Write(p)
}

// text returns what was written so far.
func (b *bounded) text() []byte {
	b.mu.Lock()
	defer b.mu.Unlock()
	return bytes.Clone(b.kept.Bytes())
}
