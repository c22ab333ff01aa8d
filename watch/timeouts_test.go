package watch

import (
	"errors"
	"strings"
	"testing"
)

// TestTimeoutsRefused: on a kernel without time-outs of single connections a Service is served as without its
// annotations, and an event on it says why. Nobody asks the kernel before a Service asks for time-outs.
func TestTimeoutsRefused(t *testing.T) {
	for _, refused := range []error{nil, errors.New("try time-outs: no such file")} {
		w, _ := publisher()
		asked := 0
		w.index.options.TryTimeouts = func() error { asked++; return refused }
		object := dualStack(1)
		w.index.setService(convertService(object))
		if asked > 0 {
			t.Error("the kernel is asked for nobody")
		}
		object.Annotations = map[string]string{"nftproxy.io/tcp-established-timeout": "2h",
			"nftproxy.io/udp-timeouts": "30s,10m", "nftproxy.io/balance": "client"}
		w.index.setService(convertService(object))
		want := "balance=client"
		problems := w.index.takeProblems()
		if refused == nil {
			want = "balance=client tcp-established-timeout=2h udp-timeouts=30s,10m"
			if len(problems) > 0 {
				t.Errorf("problems %v", problems)
			}
		}
		if got := w.index.flush().Services.At("default/svc-1").Options.String(); got != want {
			t.Errorf("refused %v: options %q, want %q", refused, got, want)
		}
		if refused == nil {
			continue
		}
		for i, begins := range []string{
			`metadata.annotations[nftproxy.io/tcp-established-timeout]: "2h": this node's kernel gives no time-outs to single ` +
				`connections (it needs CONFIG_NF_CONNTRACK_TIMEOUT); the node's are in force: try`,
			`metadata.annotations[nftproxy.io/udp-timeouts]: "30s,10m": this node's kernel`,
		} {
			if len(problems) != 2 {
				t.Fatalf("problems %v, want 2", problems)
			}
			event, has := problems[i].Event()
			if !has || event.Reason != ReasonInvalid || event.Object.Name != "svc-1" || !strings.HasPrefix(event.Note, begins) {
				t.Errorf("event %+v, want %s...", event, begins)
			}
		}
	}
}
