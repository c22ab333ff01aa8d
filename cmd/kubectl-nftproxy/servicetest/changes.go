package servicetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// The scripts of a load. It connects one time after the other until a file is there, which another one makes: the
// last makes sure that it has begun. The number of tries bounds what a test that was killed leaves running. The last
// line of the load is done, with the number of tries and of those that failed.
const (
	loadScript = `tries=0 failed=0
while [ ! -e "/tmp/stop-$2" ] && [ $tries -lt 5000 ]; do
  tries=$((tries + 1))
  seen=$(curl -q -g -s -f --noproxy '*' --connect-timeout 3 --max-time 4 -o /dev/null \
    -w '%{http_code} %{time_connect}' "http://$1/hostname")
  code=$?
  [ $code = 0 ] && : > "/tmp/began-$2" || { failed=$((failed + 1)); [ $failed -gt 3 ] || echo curl $code $seen; }
  sleep 0.02
done
echo "done $tries $failed"`
	stopScript  = `: > "/tmp/stop-$1"`
	beganScript = `n=0
until [ -e "/tmp/began-$1" ]; do n=$((n + 1)); [ $n -lt 500 ] || exit 1; sleep 0.02; done`
)

// changes has endpoints end and start under load.
func (t *trial) changes(ctx context.Context) ([]Result, error) {
	clients := slices.DeleteFunc(slices.Clone(t.clients), func(p party) bool { return p.pod.Spec.HostNetwork })
	t.note("ending an endpoint under load")
	all, err := t.all(ctx, t.reaching(testEnds, clients, "leaving-1", "leaving-2"))
	if err != nil {
		return all, err
	}
	ended, err := t.underLoad(ctx, testEnds, clients, func(ctx context.Context) error {
		return errors.Join(t.end(ctx, "leaving-1"), t.awaitEnd(ctx, "leaving-1"))
	})
	if all = append(all, ended...); err != nil {
		return all, err
	}
	if _, err := t.Client.CoreV1().Pods(t.namespace).Create(ctx, t.leaving(3), metav1.CreateOptions{}); err != nil {
		return all, fmt.Errorf("make pod leaving-3: %w", err)
	}
	if _, err := t.awaitReady(ctx, t.Client, []*corev1.Pod{t.leaving(3)}); err != nil {
		return all, err
	}
	joined, err := t.all(ctx, t.reaching(testJoins, clients, "leaving-2", "leaving-3"))
	if all = append(all, joined...); err != nil {
		return all, err
	}
	t.note("ending all endpoints under load")
	last, err := t.underLoad(ctx, testLast, clients, func(ctx context.Context) error {
		if err := t.end(ctx, "leaving-2", "leaving-3"); err != nil {
			return err
		}
		// The servers go on for longer than this load.
		timer := time.NewTimer(leavingDelay * time.Second / 2)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
		}
		return context.Cause(ctx)
	})
	return append(all, last...), err
}

// reaching are checks that these servers get the connections of the Service whose pods come and go.
func (t *trial) reaching(test string, clients []party, servers ...string) (all []*check) {
	for _, from := range clients {
		for _, to := range t.clusterIPs(serviceLeaving, from) {
			all = append(all, &check{test, from, to, want{servers: servers, all: true}, spread(len(servers))})
		}
	}
	return all
}

// end tells pods to end.
func (t *trial) end(ctx context.Context, names ...string) error {
	for _, name := range names {
		if err := t.Client.CoreV1().Pods(t.namespace).Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
			return fmt.Errorf("delete pod %s: %w", name, err)
		}
	}
	return nil
}

// awaitEnd waits until pods are gone.
func (t *trial) awaitEnd(ctx context.Context, names ...string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, startPatience, fmt.Errorf("not gone after %s", startPatience))
	defer cancel()
	for _, name := range names {
		if err := untilGone(ctx, t.podWatch(t.Client, name), &corev1.Pod{}, name); err != nil {
			return fmt.Errorf("wait until pod %s is gone: %w", name, errors.Join(context.Cause(ctx), err))
		}
	}
	return nil
}

// underLoad changes something while clients connect, and returns a result for each client and address.
func (t *trial) underLoad(ctx context.Context, test string, clients []party,
	change func(context.Context) error) ([]Result, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var loads []*load
	for _, from := range clients {
		for _, to := range t.clusterIPs(serviceLeaving, from) {
			to.what += ", under load"
			l := &load{check: &check{test: test, from: from, to: to}, name: strconv.Itoa(slices.Index(inOrder(), test)) + "-" +
				strconv.Itoa(len(loads)), done: make(chan struct{})}
			loads = append(loads, l)
			go l.run(ctx, t.Options)
		}
	}
	failed := together(loads, func(l *load) error { return l.command(ctx, t.Options, beganScript) })
	if failed == nil {
		failed = change(ctx)
	}
	// Also after the end of ctx: the loads go on in their pods.
	const patience = 10 * time.Second
	stopping, stopped := context.WithTimeout(context.WithoutCancel(ctx), patience)
	defer stopped()
	if err := together(loads, func(l *load) error { return l.command(stopping, t.Options, stopScript) }); err != nil {
		cancel()
		failed = errors.Join(failed, err)
	}
	var results []Result
	for _, l := range loads {
		<-l.done
		failed = errors.Join(failed, l.err)
		results = append(results, l.result())
	}
	return results, failed
}

// load is one client that connects again and again. name distinguishes its files from those of others in its pod.
type load struct {
	*check
	name string

	done chan struct{} // closed when out and err are there
	out  []byte
	err  error
}

func (l *load) run(ctx context.Context, o *Options) {
	defer close(l.done)
	l.out, l.err = o.Run(ctx, l.from.pod, container, "/bin/sh", "-c", loadScript, "sh", l.to.address, l.name)
}

func (l *load) command(ctx context.Context, o *Options, script string) error {
	_, err := o.Run(ctx, l.from.pod, container, "/bin/sh", "-c", script, "sh", l.name)
	return err
}

// together does something with all loads at once.
func together(loads []*load, do func(*load) error) error {
	var group errgroup.Group
	for _, l := range loads {
		group.Go(func() error { return do(l) })
	}
	return group.Wait()
}

// result reads what the load has printed. Its pods are gone when somebody would explain it.
func (l *load) result() Result {
	r := Result{Test: l.test, From: l.from.String(), To: l.to.String(), State: Failed, Detail: "the client did not tell"}
	tries, failed := 0, 0
	for line := range strings.Lines(string(l.out)) {
		if n, err := fmt.Sscanf(line, "done %d %d", &tries, &failed); n != 2 || err != nil {
			continue
		}
		r.Detail = fmt.Sprintf("%d of %d connections failed", failed, tries)
		if seen := parseTries(string(l.out)); len(seen) > 0 {
			r.Detail += ": " + inWords(seen[0].failure)
		}
		if failed == 0 && tries > 0 {
			r.State = Passed
		}
	}
	return r
}
