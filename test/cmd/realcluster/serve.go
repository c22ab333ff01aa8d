package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"nftproxy/test/cmd/realcluster/cluster"
	"nftproxy/test/cmd/realcluster/workload"
)

// doneLine is the last line of an answer or of progress when all went well.
const doneLine = "done"

// outsideFile has the path of the network namespace outside of the nodes.
const outsideFile = "outside"

func socket(dir string) string { return filepath.Join(dir, "control") }

// serve holds a cluster until it is told to end it, by a signal or a request.
func serve(ctx context.Context, dir string, o upOptions) (err error) {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	config, err := clusterConfig(ctx, dir, o)
	if err != nil {
		return err
	}
	config.Log = progressLog()
	c, err := cluster.Start(ctx, config)
	if err != nil {
		fmt.Println(err)
		return err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	if err := os.WriteFile(filepath.Join(dir, outsideFile), []byte(c.Outside.Path()), 0o644); err != nil {
		return err
	}
	l, err := net.Listen("unix", socket(dir))
	if err != nil {
		return err
	}
	server := &http.Server{Handler: handler(c, stop)}
	finished := make(chan error, 1)
	go func() { finished <- server.Serve(l) }()
	fmt.Println(doneLine)
	// The reader of progress goes now; it must not see the end of the cluster.
	if err := unix.Dup2(int(os.Stderr.Fd()), int(os.Stdout.Fd())); err != nil {
		return err
	}
	<-ctx.Done()
	err = c.Close()
	_ = server.Close() // the cluster is gone, and so are its requests
	<-finished
	return err
}

// progressLog is standard output, for several writers.
func progressLog() io.Writer { return &lockedWriter{to: os.Stdout} }

type lockedWriter struct {
	mu sync.Mutex
	to io.Writer
}

func (w *lockedWriter) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.to.Write(b)
}

// handler answers the other commands.
func handler(c *cluster.Cluster, stop func()) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /stop", func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(os.Getpid())
		stop()
	})
	type query = url.Values
	for path, run := range map[string]func(context.Context, query, io.Writer) error{
		"/smoke":   func(ctx context.Context, _ query, out io.Writer) error { return workload.Smoke(ctx, c, out) },
		"/trouble": func(ctx context.Context, _ query, out io.Writer) error { return workload.Trouble(ctx, c, out) },
		"/migrate": func(ctx context.Context, _ query, out io.Writer) error { return workload.Migrate(ctx, c, out) },
		"/migrate-by-plugin": func(ctx context.Context, _ query, out io.Writer) error {
			return workload.MigrateByPlugin(ctx, c, out)
		},
		"/node-loss": func(ctx context.Context, q query, out io.Writer) error {
			o, err := nodeLossOptions(q)
			if err != nil {
				return err
			}
			return workload.LoseNode(ctx, c, o, out)
		},
		"/move-address": func(ctx context.Context, q query, out io.Writer) error {
			o, err := moveOptions(q)
			if err != nil {
				return err
			}
			return workload.MoveAddress(ctx, c, o, out)
		},
		"/outage": func(ctx context.Context, q query, out io.Writer) error {
			o, err := outageOptions(q)
			if err != nil {
				return err
			}
			return workload.TakeAPIServerAway(ctx, c, o, out)
		},
	} {
		mux.HandleFunc("POST "+path, func(w http.ResponseWriter, r *http.Request) {
			out := &flushing{w}
			if err := run(r.Context(), r.URL.Query(), out); err != nil {
				fmt.Fprintln(out, err)
				return
			}
			fmt.Fprintln(out, doneLine)
		})
	}
	return mux
}

// outagePath is a request for an outage; outageOptions reads it.
func outagePath(o workload.OutageOptions) string {
	return "/outage?" + url.Values{"away": {o.Away.String()}, "after": {o.After.String()},
		"cut": {strconv.FormatBool(o.Cut)}}.Encode()
}

func outageOptions(q url.Values) (o workload.OutageOptions, err error) {
	var awayErr, afterErr, cutErr error
	o.Away, awayErr = time.ParseDuration(q.Get("away"))
	o.After, afterErr = time.ParseDuration(q.Get("after"))
	o.Cut, cutErr = strconv.ParseBool(q.Get("cut"))
	return o, errors.Join(awayErr, afterErr, cutErr)
}

// nodeLossPath is a request for the loss of a node; nodeLossOptions reads it.
func nodeLossPath(o workload.NodeLossOptions) string {
	return "/node-loss?" + url.Values{"eject": {o.Eject}, "rate": {strconv.Itoa(o.Rate)}, "kept": {strconv.Itoa(o.Kept)},
		"away": {o.Away.String()}, "api-server": {strconv.FormatBool(o.APIServer)}}.Encode()
}

func nodeLossOptions(q url.Values) (o workload.NodeLossOptions, err error) {
	var rateErr, keptErr, awayErr, serverErr error
	o.Eject = q.Get("eject")
	o.Rate, rateErr = strconv.Atoi(q.Get("rate"))
	o.Kept, keptErr = strconv.Atoi(q.Get("kept"))
	o.Away, awayErr = time.ParseDuration(q.Get("away"))
	o.APIServer, serverErr = strconv.ParseBool(q.Get("api-server"))
	return o, errors.Join(rateErr, keptErr, awayErr, serverErr)
}

// movePath is a request for the move of an address; moveOptions reads it.
func movePath(o workload.MoveOptions) string {
	return "/move-address?" + url.Values{"policy": {o.Policy}, "lose": {o.Lose}, "eject": {o.Eject},
		"rate": {strconv.Itoa(o.Rate)}, "kept": {strconv.Itoa(o.Kept)}, "away": {o.Away.String()}}.Encode()
}

func moveOptions(q url.Values) (o workload.MoveOptions, err error) {
	var rateErr, keptErr, awayErr error
	o.Policy, o.Lose, o.Eject = q.Get("policy"), q.Get("lose"), q.Get("eject")
	o.Rate, rateErr = strconv.Atoi(q.Get("rate"))
	o.Kept, keptErr = strconv.Atoi(q.Get("kept"))
	o.Away, awayErr = time.ParseDuration(q.Get("away"))
	return o, errors.Join(rateErr, keptErr, awayErr)
}

// flushing sends each line when it is written.
type flushing struct{ http.ResponseWriter }

func (f *flushing) Write(b []byte) (int, error) {
	n, err := f.ResponseWriter.Write(b)
	if err == nil {
		err = http.NewResponseController(f.ResponseWriter).Flush()
	}
	return n, err
}

// client speaks to the process that holds the cluster.
func client(dir string) *http.Client {
	return &http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", socket(dir))
		},
	}}
}

func post(ctx context.Context, dir, path string) (io.ReadCloser, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://cluster"+path, nil)
	if err != nil {
		return nil, err
	}
	answer, err := client(dir).Do(request)
	if err != nil {
		return nil, err
	}
	return answer.Body, nil
}

// ask makes a request and copies the answer. An answer without the last line is
// an error.
func ask(ctx context.Context, dir, path string, out io.Writer) error {
	body, err := post(ctx, dir, path)
	if err != nil {
		return fmt.Errorf("there is no cluster; `make cluster` brings one up: %w", err)
	}
	defer body.Close()
	done, err := copyUntilDone(out, body)
	if err == nil && !done {
		err = errors.New("not all went well")
	}
	return err
}

// copyUntilDone copies lines until doneLine, and says whether that came.
func copyUntilDone(to io.Writer, from io.Reader) (bool, error) {
	lines := bufio.NewScanner(from)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		if lines.Text() == doneLine {
			return true, nil
		}
		if _, err := fmt.Fprintln(to, lines.Text()); err != nil {
			return false, err
		}
	}
	return false, lines.Err()
}

// stopServer ends the process that holds the cluster and returns when it is gone.
// No such process is no error.
func stopServer(ctx context.Context, dir string) error {
	body, err := post(ctx, dir, "/stop")
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ECONNREFUSED) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("end the cluster: %w", err)
	}
	defer body.Close()
	var pid int
	if err := json.NewDecoder(body).Decode(&pid); err != nil {
		return fmt.Errorf("end the cluster: %w", err)
	}
	return awaitEnd(pid)
}

// awaitEnd returns once a process has ended.
func awaitEnd(pid int) error {
	fd, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return os.NewSyscallError("pidfd_open", err)
	}
	defer unix.Close(fd)
	for {
		_, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, -1)
		if !errors.Is(err, unix.EINTR) {
			return os.NewSyscallError("poll", err)
		}
	}
}
