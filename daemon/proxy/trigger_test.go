package proxy_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"nftproxy/model/ip"
	"nftproxy/model/service"
	"nftproxy/nft"
)

// TestTriggers: each sync has the triggers of the changes that it is to put in force. In
// a family that fails they wait for the next sync; in the other they count once.
func TestTriggers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKernel()
		r := start(t, k, services(0))
		publish := func(changes uint64, triggers service.Triggers) {
			t.Helper()
			k.handOver()
			r.services.Set(both("web", "10.1.0.1:8080", "[fd00:1::1]:8080"))
			r.mailbox.Put(service.Update{Snapshot: r.services.Snapshot(), Since: time.Now(), Triggers: triggers,
				Changes: service.Changes{Services: changes}})
			synctest.Wait()
		}
		first := service.Triggers{PerFamily: ip.PerFamily[[]time.Time]{{time.Unix(1, 0)}, {time.Unix(2, 0)}}}
		k.refuse = refuseFamily(nft.IPv6, errors.New("no"))
		publish(7, first)
		if s := r.last(); s.Err == nil || s.Changes.Services != 7 || !cmp.Equal(s.Triggers, first) {
			t.Errorf("err %v, changes %+v, triggers %v", s.Err, s.Changes, s.Triggers)
		}
		k.handOver()
		k.refuse = nil
		r.sleep(config().RetryPeriod)
		if s := r.last(); s.Err != nil ||
			!cmp.Equal(s.Triggers, service.Triggers{PerFamily: ip.PerFamily[[]time.Time]{nil, *first.Of(ip.V6)}}) {
			t.Errorf("retry: err %v, triggers %v", s.Err, s.Triggers)
		}
		r.sleep(config().MinSyncPeriod)
		publish(8, service.Triggers{})
		if s := r.last(); !cmp.Equal(s.Triggers, service.Triggers{}) || s.Changes.Services != 8 {
			t.Errorf("a change without a trigger has %v", s.Triggers)
		}
	})
}
