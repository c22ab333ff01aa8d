package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/vishvananda/netlink"

	"nftproxy/test/cmd/soak/script"
	"nftproxy/test/lib/child"
)

// run is one play of a script.
type run struct {
	w      *world
	count  *counts
	played []script.Event
}

// play plays events until their end, or until a promise is broken, and reports. A run
// that failed leaves its script and log in the directory.
func play(ctx context.Context, o options, name string, next events, out io.Writer) error {
	fmt.Fprintf(out, "soak: %s\n", name)
	r := &run{count: newCounts()}
	err := r.play(ctx, o, next, out)
	fmt.Fprint(out, r.count)
	if err == nil {
		fmt.Fprintf(out, "soak: %s: nothing was lost without a reason, and the tables were right each time\n", name)
		return nil
	}
	kept := filepath.Join(o.dir, fmt.Sprintf("failed-%d.soak", time.Now().Unix()))
	again := "SCRIPT=" + kept
	if o.olderCommit != "" {
		again += " OLDER=" + o.olderCommit
	}
	if keepErr := r.keep(kept, name+", to play by make soak "+again, err); keepErr != nil {
		return errors.Join(err, keepErr)
	}
	return fmt.Errorf("%s: %w\n%s has the script; replay it by make soak %s", name, err, kept, again)
}

// play makes the world, plays the events and ends the world.
func (r *run) play(ctx context.Context, o options, next events, out io.Writer) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	first, ok := next()
	if !ok || first.Verb != script.World {
		return errors.New("a script begins with the event world")
	}
	r.played = append(r.played, first)
	w, err := newWorld(ctx, o, first, r.count, out)
	if err != nil {
		return err
	}
	r.w = w
	w.expect()
	w.traffic = startTraffic(w)
	err = r.events(next, o, out)
	if err == nil {
		err = r.last()
	}
	w.traffic.stop()
	if err == nil {
		select {
		case <-w.traffic.failed:
			err = w.traffic.failure
		default:
		}
	}
	return errors.Join(err, w.close())
}

// events plays the events.
func (r *run) events(next events, o options, out io.Writer) error {
	report := time.Now()
	for e, ok := next(); ok; e, ok = next() {
		r.played = append(r.played, e)
		r.count.event(e.Verb)
		if o.verbose {
			fmt.Fprintf(out, "%s %s\n", time.Now().Format("15:04:05.000"), e)
		}
		if err := r.w.do(e); err != nil {
			return fmt.Errorf("event %d, %s: %w", len(r.played), e, err)
		}
		select {
		case <-r.w.ctx.Done():
			return r.w.ctx.Err()
		case <-r.w.traffic.failed:
			return r.w.traffic.failure
		default:
		}
		const period = time.Minute
		if time.Since(report) > period {
			fmt.Fprintln(out, r.count.brief())
			report = time.Now()
		}
	}
	return nil
}

// last has everything up, and settles once more.
func (r *run) last() error {
	for _, verb := range []string{script.StartAPI, script.Start, script.Repair, script.Settle} {
		if err := r.w.do(script.New(verb)); err != nil {
			return err
		}
	}
	return nil
}

// do carries out one event.
func (w *world) do(e script.Event) error {
	if !w.apiUp && needsAPI(e.Verb) {
		return nil // of a script that was cut
	}
	switch e.Verb {
	case script.Service, script.Delete, script.Endpoints:
		return w.change(e)
	case script.Crowd:
		return w.setCrowd(e.Int("n"))
	case script.Start:
		return w.start(w.opts.nftproxy)
	case script.Kill:
		return w.end(false)
	case script.Term:
		return w.end(true)
	case script.Pause:
		return w.pause(e)
	case script.Older:
		return w.upgrade()
	case script.Options:
		return w.chooseAnew(e)
	case script.Flush:
		return w.flush()
	case script.Tamper:
		return w.tamper(e)
	case script.Unowned:
		return w.disown()
	case script.Other:
		return w.other(e)
	case script.Churn:
		return w.churn(e.Int("commits"))
	case script.Full:
		return w.full(e)
	case script.StopAPI, script.StartAPI, script.Backup, script.Restore:
		return w.controlPlane(e.Verb)
	case script.AddAddress, script.DelAddress, script.AddLink, script.DelLink:
		return w.changeNode(e)
	case script.Cut:
		return w.cutOff(e)
	case script.Repair:
		return w.repair()
	case script.Settle:
		return w.settle()
	}
	return fmt.Errorf("no event %q", e.Verb)
}

func needsAPI(verb string) bool {
	switch verb {
	case script.Service, script.Delete, script.Endpoints, script.Crowd, script.Backup:
		return true
	}
	return false
}

// change changes an object. What a script that was cut asks for may be impossible: then
// the objects are as before.
func (w *world) change(e script.Event) error {
	var err error
	switch e.Verb {
	case script.Service:
		err = w.putService(e)
	case script.Delete:
		err = w.deleteService(e.Get("name"))
	case script.Endpoints:
		err = w.putEndpoints(e)
	}
	if err != nil && refusedByAPI(err) {
		w.count.add("changes that the API server refused")
		if err = w.list(); err == nil {
			w.expect()
		}
	}
	return err
}

// upgrade lets an older release serve for a while, and then this one again.
func (w *world) upgrade() error {
	if w.opts.older == "" || w.proxy == nil {
		w.count.add("upgrades left out, for there is no older binary")
		return nil
	}
	if err := w.end(true); err != nil {
		return err
	}
	// Another layout of the tables may forget clients. It may lose nothing else.
	w.book.Forget("an older release", time.Now())
	p, err := child.Start(w.Node, exec.Command(w.opts.older, knownTo(w.opts.older, w.proxyArgs())...))
	if err != nil {
		return err
	}
	w.before, w.proxy = p, p
	ctx, cancel := context.WithTimeout(w.ctx, patience)
	defer cancel()
	synced := func() error {
		_, _, err := w.proxy.Await(ctx, 0, child.Line.Synced)
		return err
	}
	if w.apiUp { // else it would wait
		if err := synced(); err != nil {
			return fmt.Errorf("the older release: %w", err)
		}
	}
	if err := w.end(true); err != nil {
		return err
	}
	return w.start(w.opts.nftproxy)
}

// chooseAnew restarts the proxy with other options.
func (w *world) chooseAnew(e script.Event) error {
	if err := w.end(true); err != nil {
		return err
	}
	next := script.New(script.World)
	for _, a := range w.choice.Args {
		if value := e.Get(a.Name); value != "" {
			a.Value = value
		}
		next.Args = append(next.Args, a)
	}
	w.choice = next
	w.expect()
	return w.start(w.opts.nftproxy)
}

// knownTo leaves out the flags that a release does not have.
func knownTo(binary string, args []string) []string {
	help, err := exec.Command(binary, "run", "--help").CombinedOutput()
	if err != nil {
		return args // it will say what is wrong
	}
	return slices.DeleteFunc(args, func(arg string) bool {
		flag, _, _ := strings.Cut(arg, "=")
		return strings.HasPrefix(flag, "--") && !strings.Contains(string(help), flag+" ")
	})
}

// controlPlane does something to the API server or its data.
func (w *world) controlPlane(verb string) error {
	ctx, cancel := context.WithTimeout(w.ctx, 2*patience)
	defer cancel()
	c := w.plane.Cluster
	switch verb {
	case script.StopAPI:
		return w.stopAPI()
	case script.Backup:
		if err := c.Backup(ctx); err != nil {
			return err
		}
		if err := w.answers(ctx); err != nil {
			return err
		}
		kept := w.objects.clone()
		w.kept = &kept
		return nil
	case script.Restore:
		if w.kept == nil {
			return nil
		}
		// The proxy may have the objects before this process does.
		w.objects, w.apiUp, w.blind = w.kept.clone(), true, false
		w.expect()
		if err := c.Restore(ctx); err != nil {
			return err
		}
		return w.answers(ctx)
	}
	w.apiUp, w.blind = true, false
	if err := c.StartAPIServer(ctx); err != nil {
		return err
	}
	return w.answers(ctx)
}

// stopAPI ends the API server as a crash does: one that ends by itself takes its address
// out of the Service kubernetes, which the proxy may see or not. The proxy first learns
// what there is to know, since nobody can tell it later.
func (w *world) stopAPI() error {
	if !w.apiUp {
		return nil
	}
	err := w.list()
	if err == nil && w.proxy != nil {
		err = w.awaitTables(time.Now())
	}
	if err != nil {
		return err
	}
	w.plane.Cluster.KillAPIServer()
	w.apiUp = false
	return nil
}

// answers returns once the API server lists objects, which are then expected.
func (w *world) answers(ctx context.Context) error {
	for {
		err := w.list()
		if err == nil {
			w.expect()
			return nil
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// changeNode gives the node an address or an interface, or takes it away.
func (w *world) changeNode(e script.Event) error {
	n := e.Int("n")
	address := netip.AddrFrom4([4]byte{192, 0, 2, byte(n + 1)})
	if n%2 == 1 {
		address = netip.MustParseAddr(fmt.Sprintf("2001:db8:7::%x", n+1))
	}
	single := netip.PrefixFrom(address, address.BitLen())
	link := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: fmt.Sprintf("soak%d", n)}, PeerName: fmt.Sprintf("p-soak%d",
		n)}
	var err error
	switch e.Verb {
	case script.AddAddress:
		err = w.Node.AddAddr("lo", single)
	case script.DelAddress:
		err = w.Node.DelAddr("lo", single)
	case script.AddLink:
		if err = w.Node.Handle().LinkAdd(link); err == nil {
			err = w.Node.AddAddr(link.Name, netip.MustParsePrefix(fmt.Sprintf("203.0.113.%d/32", n+1)))
		}
		if err == nil {
			err = w.Node.Handle().LinkSetUp(link)
		}
	case script.DelLink:
		err = w.Node.Handle().LinkDel(link)
	}
	if err != nil {
		w.count.add("changes of the node that were there already, or not there")
	}
	return nil
}

// keep writes the script of a failed run, and beside it the proxy's log.
func (r *run) keep(file, name string, failure error) error {
	if r.w != nil {
		log := strings.TrimSuffix(file, ".soak") + ".log"
		if err := os.WriteFile(log, fmt.Appendf(nil, "%v\n\n%s", failure, r.w.log()), 0o644); err != nil {
			return err
		}
	}
	var b strings.Builder
	fmt.Fprintf(&b, "# %s\n", name)
	for line := range strings.Lines(failure.Error()) {
		fmt.Fprintf(&b, "# %s\n", strings.TrimSuffix(line, "\n"))
	}
	if err := script.Write(&b, r.played); err != nil {
		return err
	}
	return os.WriteFile(file, []byte(b.String()), 0o644)
}
