package main

import (
	"context"
	"net/netip"
	"strings"
	"time"

	"nftproxy/model/service"
	"nftproxy/nft/ejecttable"
	"nftproxy/nft/ruleset"
	"nftproxy/test/cmd/soak/script"
	"nftproxy/test/lib/child"
)

// silentPod is why something was lost while a pod answered nobody.
const silentPod = "a pod whose TCP answers got lost"

// cutOff lets nobody hear of a pod's TCP servers any more. With left-out=yes it waits until the proxy leaves the pod
// out, or fails. One pod at a time is cut off.
func (w *world) cutOff(e script.Event) error {
	pod := w.Pod(e.Get("pod"))
	if pod == nil || len(w.repairs) > 0 {
		return nil // of a script that was cut
	}
	mark := 0
	if w.proxy != nil {
		mark = w.proxy.Mark()
	}
	w.book.Drops(silentPod, time.Now())
	for _, a := range pod.Addrs {
		for _, port := range targetPorts() {
			repair, err := pod.NS.Cut(netip.AddrPortFrom(a, port))
			if err != nil {
				return err
			}
			w.repairs = append(w.repairs, repair)
		}
	}
	if e.Get("left-out") != "yes" || w.proxy == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(w.ctx, patience)
	defer cancel()
	_, _, err := w.proxy.Await(ctx, mark, func(l child.Line) bool {
		return strings.HasPrefix(l.Msg, "an endpoint does not answer; new connections")
	})
	if err != nil && w.ctx.Err() == nil {
		return failed("%s does not answer, and is not left out: %v", pod.Name, err)
	}
	w.count.add("times a pod that did not answer was left out, as an event waited for")
	return err
}

// repair lets the pod that is cut off answer again.
func (w *world) repair() error {
	for len(w.repairs) > 0 {
		if err := w.repairs[0](); err != nil {
			return err
		}
		w.repairs = w.repairs[1:]
		w.repaired = time.Now()
	}
	return nil
}

// silentStill says after a settle that clients still lose something by a pod that answers nobody, or did so until a
// moment ago: the proxy may leave it out for the lack of an answer then.
func (w *world) silentStill(now time.Time) {
	const aftermath = 30 * time.Second
	if len(w.repairs) > 0 || now.Sub(w.repaired) < aftermath {
		w.book.Drops(silentPod, now)
	}
}

// adjustments returns what the proxy does without and what is growing, as it tells other processes.
func (w *world) adjustments() (all service.Adjustments, err error) {
	err = w.Node.Do(func() (err error) {
		all, err = ejecttable.Read(ruleset.DefaultTable)
		return err
	})
	growing, leftOut := 0, 0
	for _, adjusted := range all.All() {
		growing, leftOut = growing+adjusted.Growing(), leftOut+len(*adjusted)-adjusted.Growing()
	}
	if leftOut > 0 {
		w.count.add("looks at the tables while a pod was left out")
	}
	if growing > 0 {
		w.count.add("looks at the tables while an endpoint was growing")
	}
	return all, err
}
