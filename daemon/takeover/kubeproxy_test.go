package takeover

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"nftproxy/node/otherproxy"
)

// followed is a follower with a world of its own: each look takes what the fields say.
type followed struct {
	*KubeProxy
	kinds    []otherproxy.Kind
	written  bool // until the next look
	state    otherproxy.Running
	err      error
	clock    time.Time
	log      bytes.Buffer
	events   []string
	removals int
	outcome  error
	strict   bool
	felix    otherproxy.Felix
}

func newFollowed() *followed {
	w := &followed{clock: time.Unix(1, 0)}
	w.KubeProxy = &KubeProxy{
		log:    slog.New(slog.NewTextHandler(&w.log, nil)),
		failed: map[string]string{},
		record: func(note string) { w.events = append(w.events, note) },
		count:  func([]otherproxy.Kind, bool) {},
		rules: func() ([]otherproxy.Kind, bool, error) {
			written := w.written
			w.written = false
			return w.kinds, written, w.err
		},
		running: func(context.Context) (otherproxy.Running, error) {
			return w.state, nil
		},
		remove: func(_ context.Context, report func(otherproxy.Rules, error)) error {
			w.removals++
			for _, k := range w.kinds {
				report(otherproxy.Rules{Kind: k, Table: "ip kube-proxy"}, w.outcome)
			}
			if w.outcome == nil {
				w.kinds = nil
			}
			return nil
		},
		felix:     func() (otherproxy.Felix, error) { return w.felix, nil },
		strictARP: func() bool { return w.strict },
		now:       func() time.Time { return w.clock },
	}
	return w
}

// looks looks every ten seconds for that long, and returns what was logged.
func (w *followed) looks(t *testing.T, during time.Duration) string {
	t.Helper()
	w.log.Reset()
	for end := w.clock.Add(during); w.clock.Before(end); w.clock = w.clock.Add(kubeProxyPeriod) {
		w.look(t.Context())
	}
	return w.log.String()
}

func (w *followed) want(t *testing.T, what string, removals, events int, log string, lines ...string) {
	t.Helper()
	if w.removals != removals || len(w.events) != events {
		t.Errorf("%s: %d removals and events %q, want %d and %d", what, w.removals, w.events, removals, events)
	}
	if got := strings.Count(log, "\n"); got != len(lines) {
		t.Errorf("%s: logged\n%s\nwant %d lines", what, log, len(lines))
	}
	for _, l := range lines {
		if !strings.Contains(log, l) {
			t.Errorf("%s: logged\n%s\nwant %q", what, log, l)
		}
	}
}

// TestKubeProxyEnds: rules are removed once kube-proxy has been gone for a while and our program
// is in force, not before.
func TestKubeProxyEnds(t *testing.T) {
	w := newFollowed()
	w.want(t, "nothing", 0, 0, w.looks(t, time.Minute))
	w.kinds, w.state = []otherproxy.Kind{otherproxy.NFTables}, otherproxy.Running{PIDs: []int{7}}
	w.want(t, "beside", 0, 1, w.looks(t, time.Minute), "level=WARN msg=\"kube-proxy runs beside nftproxy")
	if want := "kube-proxy runs beside nftproxy: both serve the Services of this node (runs (PID 7); rules: " +
		"nftables)"; !strings.Contains(w.events[0], want) {
		t.Errorf("event %q, want %q", w.events[0], want)
	}
	w.state = otherproxy.Running{}
	w.want(t, "before our program is in force", 0, 1, w.looks(t, 2*kubeProxyRest), "they will be removed soon")
	w.inForce.Store(true)
	w.want(t, "our program is in force", 1, 1, w.looks(t, time.Minute), "removed the rules of a kube-proxy",
		"kube-proxy has no rules on this node")
	// The way back: kube-proxy makes its rules while nftproxy runs.
	w.kinds, w.state = []otherproxy.Kind{otherproxy.NFTables}, otherproxy.Running{Answers: "127.0.0.1:10249"}
	w.want(t, "the way back", 1, 2, w.looks(t, 10*time.Minute), "it answers on 127.0.0.1:10249")
	w.state = otherproxy.Running{}
	w.want(t, "it ends for a moment", 1, 2, w.looks(t, kubeProxyRest), "they will be removed soon")
	w.state = otherproxy.Running{PIDs: []int{8}}
	w.want(t, "it is back", 1, 3, w.looks(t, time.Minute), "runs (PID 8)")
	w.state = otherproxy.Running{}
	w.want(t, "the rest begins anew", 1, 3, w.looks(t, kubeProxyRest), "they will be removed soon")
}

// TestKubeProxyHidden: where processes cannot be seen, rules stay for ever, and the log says
// how they go.
func TestKubeProxyHidden(t *testing.T) {
	w := newFollowed()
	w.inForce.Store(true)
	w.kinds, w.state = []otherproxy.Kind{otherproxy.IPTablesNFT},
		otherproxy.Running{Unknown: otherproxy.ErrHiddenProcesses}
	w.want(t, "hidden", 0, 1, w.looks(t, time.Hour), "nftproxy cleanup --kube-proxy")
}

// TestKubeProxyUnnamed: whoever changes kube-proxy's rules and cannot be named is unknown, not absent. The rules stay,
// until a kube-proxy was seen that has ended since.
func TestKubeProxyUnnamed(t *testing.T) {
	w := newFollowed()
	w.inForce.Store(true)
	w.kinds = []otherproxy.Kind{otherproxy.IPTablesNFT}
	w.want(t, "quiet rules", 0, 0, w.looks(t, time.Minute), "they will be removed soon")
	w.written = true
	w.want(t, "they change", 0, 1, w.looks(t, time.Hour),
		"its rules have changed, and no process is seen that changes them")
	w.state = otherproxy.Running{PIDs: []int{7}}
	w.want(t, "it is seen", 0, 2, w.looks(t, time.Minute), "runs (PID 7)")
	w.state, w.written = otherproxy.Running{}, true // its last change
	w.want(t, "it ends", 1, 2, w.looks(t, time.Hour), "they will be removed soon", "removed the rules",
		"kube-proxy has no rules on this node")
	w.kinds, w.written = []otherproxy.Kind{otherproxy.IPTablesNFT}, true
	w.want(t, "they come back", 1, 3, w.looks(t, time.Hour), "its rules have changed")
}

// TestKubeProxyServesTheRest: beside --nftproxy-service-proxy-name, kube-proxy serves all other
// Services, and its rules stay whatever it does.
func TestKubeProxyServesTheRest(t *testing.T) {
	w := newFollowed()
	w.beside = true
	w.inForce.Store(true)
	w.kinds = []otherproxy.Kind{otherproxy.NFTables}
	w.want(t, "it does not run", 0, 0, w.looks(t, time.Hour))
	w.state = otherproxy.Running{Answers: "127.0.0.1:10249"}
	w.want(t, "it runs", 0, 0, w.looks(t, time.Hour))
}

// TestKubeProxyRest: a kubelet's back-off of 5 minutes is no end of kube-proxy.
func TestKubeProxyRest(t *testing.T) {
	w := newFollowed()
	w.inForce.Store(true)
	w.kinds = []otherproxy.Kind{otherproxy.NFTables}
	w.want(t, "the longest back-off", 0, 0, w.looks(t, 5*time.Minute+kubeProxyPeriod), "they will be removed soon")
	w.want(t, "after it", 1, 0, w.looks(t, 2*time.Minute), "removed the rules of a kube-proxy",
		"kube-proxy has no rules on this node")
}

// TestKubeProxyKept: rules that cannot be removed are tried once, and an error of a look is logged
// once.
func TestKubeProxyKept(t *testing.T) {
	w := newFollowed()
	w.inForce.Store(true)
	w.kinds, w.outcome = []otherproxy.Kind{otherproxy.IPTablesLegacy}, fmt.Errorf("chain mine: %w", otherproxy.ErrForeign)
	w.want(t, "kept", 1, 0, w.looks(t, time.Hour), "they will be removed soon", "chain mine: a rule of another program")
	w.err = errors.New("no netlink")
	w.want(t, "an error", 1, 0, w.looks(t, time.Minute), "no netlink")
}

// TestKubeProxyIsASign: the log says once what Felix goes by, and tables of which a part stays for it are tried once.
func TestKubeProxyIsASign(t *testing.T) {
	w := newFollowed()
	w.inForce.Store(true)
	w.felix = otherproxy.Felix{PID: 9, Planes: []string{"iptables"}}
	w.want(t, "at the start", 0, 0, w.looks(t, time.Hour), "Felix (PID 9) uses iptables, also without")
	w.felix = otherproxy.Felix{PID: 9, Planes: []string{"nftables", "iptables"}, Sign: true} // it changes
	w.kinds, w.outcome = []otherproxy.Kind{otherproxy.NFTables}, fmt.Errorf("felix: %w", otherproxy.ErrSign)
	w.want(t, "kept", 1, 0, w.looks(t, time.Hour), "they will be removed soon", "level=WARN msg=\"Calico may change",
		"an empty chain of kube-proxy stays\" rules=\"ip kube-proxy (nftables)\" err=\"felix: another")
}

// TestKubeProxyTriedAgain: a removal that fails otherwise is made again at each look until it
// succeeds, and logged once.
func TestKubeProxyTriedAgain(t *testing.T) {
	w := newFollowed()
	w.inForce.Store(true)
	w.kinds, w.outcome = []otherproxy.Kind{otherproxy.IPTablesNFT}, fmt.Errorf("remove: %w", otherproxy.ErrChanged)
	w.want(t, "the first tries", 3, 0, w.looks(t, kubeProxyRest+3*kubeProxyPeriod), "they will be removed soon",
		"will try again")
	w.outcome = nil
	w.want(t, "success", 4, 0, w.looks(t, time.Minute), "removed the rules of a kube-proxy",
		"kube-proxy has no rules on this node")
}

// TestKubeProxyInUse: while connections use what IPVS mode left, it is tried again once a minute, and logged once.
func TestKubeProxyInUse(t *testing.T) {
	w := newFollowed()
	w.inForce.Store(true)
	w.kinds, w.outcome = []otherproxy.Kind{otherproxy.IPVS}, fmt.Errorf("1 virtual server: %w", otherproxy.ErrInUse)
	w.want(t, "the first tries", 3, 0, w.looks(t, kubeProxyRest+2*inUseRest+kubeProxyPeriod), "they will be removed soon",
		"these go when the connections have ended")
	w.outcome = fmt.Errorf("2 addresses: %w", otherproxy.ErrInUse)
	w.want(t, "another one", 4, 0, w.looks(t, inUseRest))
	w.outcome, w.strict = nil, true
	w.want(t, "the connections have ended", 5, 0, w.looks(t, 2*inUseRest), "removed the rules of a kube-proxy",
		"sysctl -w net.ipv4.conf.all.arp_ignore=0", "kube-proxy has no rules on this node")
}
