package proxy_test

import (
	"errors"
	"maps"
	"slices"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"nftproxy/model/service"
	"nftproxy/model/snapshots"
	"nftproxy/nft"
	"nftproxy/test/check"
	"nftproxy/test/check/strict"
	"nftproxy/test/gen"
)

// foreign makes a change as another program would.
func (r *rig) foreign(ops ...nft.Op) {
	r.Helper()
	if err := strict.Apply(r.kernel.model, nft.Batch{Ops: ops}); err != nil {
		r.Fatalf("foreign edit: %v", err)
	}
	r.kernel.generation++
}

// deleteAll deletes every element of the named sets of the IPv4 table.
func (r *rig) deleteAll(sets ...string) {
	r.Helper()
	table := r.program().IPv4
	for _, name := range sets {
		var gone []nft.OwnedElement
		for _, e := range r.kernel.model.Table(table.ID()).Sets[name].Elements {
			gone = append(gone, nft.OwnedElement{Element: e})
		}
		r.foreign(nft.DeleteElements{Table: table.ID(), Set: table.Set(name), Elements: gone})
	}
}

// TestForeignEdit: another program changed our tables. The next sync meets the change
// and puts its program in force nevertheless.
func TestForeignEdit(t *testing.T) {
	for name, edit := range map[string]func(r *rig, table nft.TableID){
		"endpoints deleted": func(r *rig, _ nft.TableID) { r.deleteAll("endpoints") },
		"all elements deleted": func(r *rig, _ nft.TableID) {
			r.deleteAll("services", "node-ports", "endpoints", "node-port-endpoints", "cluster-ips")
		},
		"table deleted": func(r *rig, table nft.TableID) { r.foreign(nft.DeleteTable{Table: table}) },
		"table deleted, empty": func(r *rig, table nft.TableID) {
			r.foreign(nft.DeleteTable{Table: table}, nft.AddTable{Table: table})
		},
		"our next element is there, with another verdict": func(r *rig, table nft.TableID) {
			part := r.programWith(gen.UniformService(5, 3)).IPv4.Parts.At("ns-5/svc-5")
			for _, e := range part.Elements {
				if e.Set == "services" {
					e.Verdict = nft.Verdict{Code: nft.Drop}
					r.foreign(nft.AddElements{Table: table, Set: r.program().IPv4.Set("services"),
						Elements: []nft.OwnedElement{{Element: e}}})
				}
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := start(t, newKernel(), services(3))
				r.publishAndWait()
				edit(r, r.program().IPv4.ID())
				r.sleep(time.Second)
				r.services.Set(gen.UniformService(0, 2))
				r.services.Set(gen.UniformService(5, 3))
				r.publishAndWait()
				r.inForce()
				r.wantSyncs(2)
				if s := r.last(); s.Err != nil || len(s.Quarantined) > 0 {
					t.Errorf("err %v, quarantined %v", s.Err, s.Quarantined)
				}
				if r.kernel.refused != 1 || r.kernel.reads != 2*perRead {
					t.Errorf("refused %d times and read %d tables, want 1 and both twice", r.kernel.refused, r.kernel.reads)
				}
			})
		})
	}
}

func (r *rig) programWith(s *service.Service) *nft.Program {
	old := r.services
	defer func() { r.services = old }()
	r.services = snapshots.NewBuilder(gen.PlainNode())
	r.services.Set(s)
	return r.program()
}

// TestQuarantine: the kernel refuses two parts, and everything else goes in. The loop
// tries each of them again when it changes, and now and then.
func TestQuarantine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bad := []string{"ns-1/svc-1", "ns-2/svc-2"}
		r := start(t, newKernel(), services(4))
		r.kernel.refuse = refuseParts(errRefused, bad...)
		r.publishAndWait()
		r.inForce(bad...)
		s := r.last()
		if got := slices.Sorted(maps.Keys(s.Quarantined)); !slices.Equal(got, bad) {
			t.Errorf("quarantined %v, want %v", got, bad)
		}
		if err := s.Quarantined[bad[0]]; !errors.Is(err, errRefused) {
			t.Errorf("quarantined for %v", err)
		}
		if s.Err != nil || !s.InForce(nft.IPv4) {
			t.Errorf("err %v", s.Err)
		}

		reads := r.kernel.reads
		r.services.Set(gen.UniformService(0, 9))
		r.sleep(config().MinSyncPeriod)
		r.publishAndWait()
		r.inForce(bad...)
		r.sleep(time.Hour)
		refused := r.kernel.refused
		r.sleep(time.Hour)
		// Each part is tried every 2.5 to 5 minutes.
		if tries := r.kernel.refused - refused; tries < 12 || tries > 50 {
			t.Errorf("tried again %d times in an hour, want 24 to 48", tries)
		}
		if r.kernel.reads != reads {
			t.Errorf("read %d tables though no other program wrote", r.kernel.reads-reads)
		}
		if again := r.last().Quarantined[bad[0]]; again.Error() != s.Quarantined[bad[0]].Error() {
			t.Errorf("now quarantined for %v, which would be logged again", again)
		}

		// The kernel refuses a change of the part too.
		r.services.Set(gen.UniformService(1, 5))
		r.publishAndWait()
		r.inForce(bad...)
		r.sleep(time.Second)

		// The kernel accepts the next change.
		r.kernel.refuse = refuseParts(errRefused, bad[1])
		r.services.Set(gen.UniformService(1, 6))
		r.publishAndWait()
		r.inForce(bad[1])
		r.sleep(time.Second)

		// The other part is deleted.
		r.services.Delete(service.Name(bad[1]))
		r.publishAndWait()
		r.inForce()
		if s := r.last(); len(s.Quarantined) > 0 || s.Err != nil {
			t.Errorf("quarantined %v, err %v", s.Quarantined, s.Err)
		}
	})
}

// TestQuarantineOfPartInForce: the kernel refuses a change of a part that is in force.
// The part's old elements are deleted, and everything else stays.
func TestQuarantineOfPartInForce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, newKernel(), services(3))
		r.publishAndWait()
		r.inForce()
		r.sleep(time.Second)
		r.kernel.refuse = refuseParts(errRefused, "ns-1/svc-1")
		r.services.Set(gen.UniformService(1, 8))
		r.services.Set(gen.UniformService(2, 8))
		r.publishAndWait()
		r.inForce("ns-1/svc-1")
	})
}

// TestQuarantineEach: each error of the kernel names only one refused part.
func TestQuarantineEach(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, newKernel(), services(8))
		bad := []string{"ns-1/svc-1", "ns-3/svc-3", "ns-6/svc-6"}
		r.kernel.refuse = func(b nft.Batch) error {
			for _, part := range bad {
				if err := refuseParts(errRefused, part)(b); err != nil {
					return err
				}
			}
			return nil
		}
		r.publishAndWait()
		r.inForce(bad...)
		r.wantSyncs(1)
	})
}

// TestRefusedDeletion: an error names a part that the program no longer has. Nothing
// goes into quarantine, and the tries are few.
func TestRefusedDeletion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, newKernel(), services(3))
		r.publishAndWait()
		r.sleep(time.Second)
		r.kernel.refuse = always(partsError{[]string{"ns-1/svc-1", nft.Unowned}, errRefused})
		r.services.Delete("ns-1/svc-1")
		r.publishAndWait()
		s := r.last()
		if !errors.Is(s.Err, errRefused) || len(s.Quarantined) > 0 {
			t.Errorf("err %v, quarantined %v", s.Err, s.Quarantined)
		}
		// Two tries with both families, before and after a read, and one with the only
		// family that has something to write.
		if r.kernel.refused != 3 {
			t.Errorf("%d tries, want 3", r.kernel.refused)
		}
		r.kernel.refuse = nil
		r.sleep(config().RetryPeriod)
		r.inForce()
	})
}

// TestOutcomeUnknown: a batch goes in although there is an error, once or several
// times. The wanted program is in force after the sync.
func TestOutcomeUnknown(t *testing.T) {
	for name, lose := range map[string]func(nft.Batch) error{
		"once":            times(1, always(syscall.ENOBUFS)),
		"twice":           times(2, always(syscall.ENOBUFS)),
		"always":          always(syscall.ENOBUFS),
		"with parts":      times(3, always(partsError{[]string{"ns-1/svc-1"}, syscall.ENOBUFS})),
		"only one family": refuseFamily(nft.IPv6, syscall.ENOBUFS),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := start(t, newKernel(), services(3))
				r.publishAndWait()
				r.kernel.lose = lose
				r.sleep(time.Second)
				r.services.Set(gen.UniformService(1, 8))
				r.services.Set(both("web", "10.1.0.1:8080", "[fd00:1::1]:8080"))
				r.publishAndWait()
				r.inForce()
				if s := r.last(); s.Err != nil || len(s.Quarantined) > 0 {
					t.Errorf("err %v, quarantined %v", s.Err, s.Quarantined)
				}
			})
		})
	}
}

// TestFamilyAlone: the kernel refuses one family. The other goes in, and the loop tries
// the first one again.
func TestFamilyAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, newKernel(), services(3))
		r.kernel.refuse = refuseFamily(nft.IPv6, syscall.EOPNOTSUPP)
		r.publishAndWait()
		s := r.last()
		if !errors.Is(s.Err, syscall.EOPNOTSUPP) || s.InForce(nft.IPv6) || !s.InForce(nft.IPv4) {
			t.Errorf("err %v, in force %v and %v: want IPv4 alone", s.Err, s.InForce(nft.IPv4), s.InForce(nft.IPv6))
		}
		if want := "family ip6: apply batch: operation not supported"; s.Err.Error() != want {
			t.Errorf("err %q, want %q", s.Err, want)
		}
		r.familyInForce(nft.IPv4)

		r.sleep(time.Second)
		r.services.Set(both("web", "10.1.0.1:8080", "[fd00:1::1]:8080"))
		r.publishAndWait()
		r.familyInForce(nft.IPv4)
		if r.kernel.model.Table(r.program().IPv6.ID()) != nil {
			t.Error("an IPv6 table from nowhere")
		}

		r.kernel.refuse = nil
		r.sleep(config().RetryPeriod)
		r.inForce()
		if s := r.last(); s.Err != nil {
			t.Error(s.Err)
		}
	})
}

// familyInForce checks one table; its pools must be in the order of a first write.
func (r *rig) familyInForce(f nft.Family) {
	r.Helper()
	id := r.program().Table(f).ID()
	want, got := nft.NewModel(), nft.NewModel()
	want.Put(r.program().Model().Table(id))
	got.Put(r.kernel.model.Table(id))
	if diff := cmp.Diff(want.String(), got.String()); diff != "" {
		r.Errorf("table %s (-want +got):\n%s", id, diff)
	}
}

func TestBothFamiliesFail(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, newKernel(), services(1))
		r.kernel.refuse = always(syscall.EPERM)
		r.publishAndWait()
		s := r.last()
		if !errors.Is(s.Err, syscall.EPERM) || s.InForce(nft.IPv4) || s.InForce(nft.IPv6) {
			t.Errorf("err %v", s.Err)
		}
		if s.Written != 0 {
			t.Errorf("%d written", s.Written)
		}
	})
}

// TestFailureAfterSuccess: the tables stay as they are when the kernel refuses a batch.
func TestFailureAfterSuccess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, newKernel(), services(1))
		r.services.Set(both("web", "10.1.0.1:8080", "[fd00:1::1]:8080"))
		r.publishAndWait()
		before := r.kernel.model.String()
		r.sleep(time.Second)
		r.kernel.refuse = always(syscall.EPERM)
		r.services.Set(both("web", "10.1.0.2:8080", "[fd00:1::2]:8080"))
		r.publishAndWait()
		if diff := cmp.Diff(before, r.kernel.model.String()); diff != "" {
			t.Errorf("tables after a refused change (-before +after):\n%s", diff)
		}
	})
}

// TestFamilyFails: one family's table cannot be owned, read or written. The loop still
// owns, reads, writes and repairs the other family's table. When the first family works
// again, both are in force.
func TestFamilyFails(t *testing.T) {
	for _, bad := range nft.Families() {
		good := nft.IPv4
		if bad == nft.IPv4 {
			good = nft.IPv6
		}
		for name, fail := range map[string]func(*fakeKernel){
			"own":   func(k *fakeKernel) { k.ownErr = syscall.EPERM },
			"read":  func(k *fakeKernel) { k.readErr = syscall.EPERM },
			"write": func(k *fakeKernel) { k.refuse = refuseFamily(bad, syscall.EPERM) },
		} {
			t.Run(bad.String()+" "+name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					k := newKernel()
					k.failing = bad
					fail(k)
					r := startWith(t, checking(), k, services(3))
					r.services.Set(both("web", "10.1.0.1:8080", "[fd00:1::1]:8080"))
					r.publishAndWait()
					r.onlyInForce(good)

					r.sleep(config().RetryPeriod + config().MinSyncPeriod)
					reads := k.reads
					r.services.Set(both("web", "10.1.0.2:8080", "[fd00:1::2]:8080"))
					r.publishAndWait()
					r.onlyInForce(good)
					if k.reads > reads+1 {
						t.Errorf("read %d tables for a change, though one was known", k.reads-reads)
					}
					// Another program deletes the good family's table.
					r.foreign(nft.DeleteTable{Table: r.program().Table(good).ID()})
					r.sleep(checking().CheckPeriod)
					r.onlyInForce(good)

					k.ownErr, k.readErr, k.refuse = nil, nil, nil
					r.sleep(config().RetryPeriod + config().MinSyncPeriod)
					r.inForce()
					if err := r.last().Err; err != nil {
						t.Error(err)
					}
					// From now on both are in one transaction again.
					batches := len(k.applied)
					r.services.Set(both("web", "10.1.0.3:8080", "[fd00:1::3]:8080"))
					r.publishAndWait()
					r.wantBatches(batches + 1)
					r.inForce()
				})
			})
		}
	}
}

// onlyInForce checks that the program of the last sync is in force in one family, and
// that the Sync says why it is not in the other.
func (r *rig) onlyInForce(good nft.Family) {
	r.Helper()
	r.familyInForce(good)
	s := r.last()
	for _, f := range nft.Families() {
		if err := s.FamilyErr(f); (f == good) != (err == nil) || f != good && !errors.Is(err, syscall.EPERM) {
			r.Errorf("family %s: %v", f, err)
		}
		if s.InForce(f) != (f == good) {
			r.Errorf("family %s: in force %t", f, s.InForce(f))
		}
	}
}

// TestApplied: a Sync has the program in force, which may not be the wanted one. It
// says whether contents of the kernel were adopted.
func TestApplied(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, newKernel(), services(2))
		check := func(when string, want *nft.Program, adopted bool) {
			t.Helper()
			s := r.last()
			if diff := cmp.Diff(want.String(), s.Applied.String()); diff != "" {
				t.Errorf("%s: applied (-want +got):\n%s", when, diff)
			}
			if s.Adopted != adopted {
				t.Errorf("%s: adopted is %t", when, s.Adopted)
			}
			r.sleep(time.Minute)
		}
		r.kernel.refuse = always(syscall.EPERM)
		r.publishAndWait()
		if s := r.last(); s.Applied.IPv4.Sets.Len() > 0 || s.Applied.IPv6.Sets.Len() > 0 || s.Adopted {
			t.Errorf("before anything was in force: %+v, adopted %t", s.Applied, s.Adopted)
		}
		r.kernel.refuse = nil
		r.sleep(config().RetryPeriod)
		check("at first", r.program(), true)

		r.services.Set(both("web", "10.1.0.1:8080", "[fd00:1::1]:8080"))
		r.publishAndWait()
		first := r.program()
		check("after a change", first, false)

		r.kernel.refuse = refuseFamily(nft.IPv6, syscall.EPERM)
		r.services.Set(both("web", "10.1.0.2:8080", "[fd00:1::2]:8080"))
		r.publishAndWait()
		check("in one family", &nft.Program{IPv4: r.program().IPv4, IPv6: first.IPv6}, true)

		r.kernel.refuse = refuseParts(errRefused, "ns-1/svc-1")
		r.services.Set(gen.UniformService(1, 3))
		r.publish()
		r.sleep(config().MinSyncPeriod) // A retry may have begun just before.
		check("with a part in quarantine", r.program("ns-1/svc-1"), true)
	})
}

// TestFound: a Sync has the contents of each family at the first read, once.
func TestFound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKernel()
		r := start(t, k, services(3))
		r.publishAndWait()
		if found := r.last().Found; found == nil || found.Table(r.program().IPv4.ID()) != nil {
			t.Errorf("where nothing was: %v", found)
		}
		before := r.program()
		r.stop()

		r = start(t, k, services(2))
		k.failing, k.readErr = nft.IPv6, syscall.EPERM
		r.publishAndWait()
		first := r.last().Found
		if first == nil || first.Table(before.IPv6.ID()) != nil {
			t.Fatalf("with IPv6 unreadable: %v", first)
		}
		k.readErr = nil
		r.sleep(config().RetryPeriod)
		second := r.last().Found
		if second == nil || second.Table(before.IPv4.ID()) != nil {
			t.Fatalf("with IPv6 readable: %v", second)
		}
		first.Put(second.Table(before.IPv6.ID()))
		if diff := check.Diff(before, first); diff != "" {
			t.Errorf("found (-want +got):\n%s", diff)
		}
		r.services.Set(gen.UniformService(0, 9))
		r.publishAndWait()
		if found := r.last().Found; found != nil {
			t.Errorf("reported again: %v", found)
		}
	})
}
