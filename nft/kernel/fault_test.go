package kernel_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"nftproxy/nfnetlink"
	"nftproxy/nft"
	"nftproxy/nft/kernel"
	"nftproxy/test/check/strict"
	"nftproxy/test/lib/netlinkfault"
)

// openFaulty makes a namespace, and a Conn there whose kernel's answers go wrong on command.
func openFaulty(t *testing.T) (*netlinkfault.Injector, *kernel.Conn, *kernel.Conn) {
	t.Helper()
	ns, other := open(t)
	injector := netlinkfault.New(netlinkfault.None)
	c, err := kernel.Open(kernel.Config{NetNS: ns.Fd(), Syscalls: func() nfnetlink.Syscalls { return injector.Wire() }})
	must(t, err)
	t.Cleanup(func() { _ = c.Close() })
	return injector, c, other
}

// questions are the methods of a Conn that only read, and what they answer as text.
func questions(c *kernel.Conn, p *nft.Program) map[string]func() (string, error) {
	id, learnt, counted := table(nft.IPv4), p.IPv4.Set("affinity"), p.IPv4.Set("counted-services")
	var keys []nft.Value
	for i := range 100 {
		keys = append(keys, servicePrefix(nft.IPv4, 3, 6, uint16(80+i%2)))
	}
	counts := func(ask func(visit func(kernel.Count)) error) (string, error) {
		var lines []string
		err := ask(func(n kernel.Count) { lines = append(lines, fmt.Sprintf("%x %d", n.Key, n.Packets)) })
		slices.Sort(lines)
		return strings.Join(lines, "\n"), err
	}
	read := func(from int) (string, error) {
		c.LookUpFrom(from)
		m, err := c.Read(p)
		if err != nil {
			return "", err
		}
		return m.String(), nil
	}
	return map[string]func() (string, error){
		"Read":         func() (string, error) { return read(1 << 30) },
		"Read by keys": func() (string, error) { return read(1) },
		"Tables":       func() (string, error) { tables, err := c.Tables(tableName); return fmt.Sprint(tables), err },
		"OurTables":    func() (string, error) { tables, err := c.OurTables(); return fmt.Sprint(tables), err },
		"Owned":        func() (string, error) { owned, err := c.Owned(id); return fmt.Sprint(owned), err },
		"Generation":   func() (string, error) { n, err := c.Generation(); return fmt.Sprint(n), err },
		"Rules":        func() (string, error) { rules, err := c.Rules(id); return fmt.Sprint(rules), err },
		"Learned": func() (string, error) {
			all, err := c.Learned(id, learnt)
			var keys []nft.Value
			for _, e := range all {
				keys = append(keys, e.Key+e.Data)
			}
			slices.Sort(keys)
			return fmt.Sprintf("%x", slices.Compact(keys)), err
		},
		"LearnedBy": func() (string, error) {
			e, ok, err := c.LearnedBy(id, learnt, remembered(nft.IPv4, 7).Key)
			return fmt.Sprintf("%x %v", e.Data, ok), err
		},
		"ChainCount": func() (string, error) { n, err := c.ChainCount(id, "refuse-and-count"); return fmt.Sprint(n), err },
		"Counts": func() (string, error) {
			return counts(func(v func(kernel.Count)) error { return c.Counts(id, counted, keys, v) })
		},
		"AllCounts": func() (string, error) {
			return counts(func(v func(kernel.Count)) error { return c.AllCounts(id, counted, v) })
		},
	}
}

// faultsAt are the faults to try at the messages that were sent. With -short each fault comes at one
// message of each kind.
func faultsAt(places []netlinkfault.Place) iter.Seq2[netlinkfault.Place, netlinkfault.Fault] {
	return func(yield func(netlinkfault.Place, netlinkfault.Fault) bool) {
		tried := map[string]bool{}
		for _, at := range netlinkfault.Choose(places) {
			for _, f := range netlinkfault.Faults(at) {
				sort := at.Message + ": " + f.String()
				if testing.Short() && tried[sort] {
					continue
				}
				tried[sort] = true
				if !yield(at, f) {
					return
				}
			}
		}
	}
}

// TestFaultsOfAnswers: one answer of the kernel goes wrong while a Conn reads. Either the method
// returns an error, or its answer is right. Without further faults the next answer is right.
func TestFaultsOfAnswers(t *testing.T) {
	injector, c, _ := openFaulty(t)
	p := everything()
	must(t, c.Apply(load(p)))
	const clients = 1500 // several datagrams
	must(t, c.Remember(table(nft.IPv4), p.IPv4.Set("affinity"), rememberedBy(nft.IPv4, 0, clients)))
	awaitLearnt(t, c, nft.IPv4, p.IPv4.Set("affinity"), clients)
	cases, failures := 0, 0
	for name, ask := range questions(c, p) {
		var places []netlinkfault.Place
		injector.Decide(func(at netlinkfault.Place) (netlinkfault.Fault, bool) {
			places = append(places, at)
			return netlinkfault.Fault{}, false
		})
		want, err := ask()
		must(t, err)
		for at, f := range faultsAt(places) {
			if f.Errno == unix.ENOENT {
				continue // That answer says that there is nothing.
			}
			injector.Decide(func(p netlinkfault.Place) (netlinkfault.Fault, bool) { return f, p.Number == at.Number })
			got, err := ask()
			if err == nil && got != want {
				t.Errorf("%s, %s at message %d, %s: no error, and the answer is not the right one", name, f, at.Number, at)
			}
			if cases++; err != nil {
				failures++
			}
			injector.Decide(netlinkfault.None)
			if got, err = ask(); err != nil || got != want {
				t.Fatalf("%s after %s at message %d, %s: error %v, the right answer: %t", name, f, at.Number, at, err, got == want)
			}
		}
	}
	t.Logf("%d cases, %d ended with an error", cases, failures)
}

// TestFaultsOfSweep: one answer goes wrong while a Conn sweeps a map. The next sweep finishes the
// work, and no transaction of another process is hidden from Generation.
func TestFaultsOfSweep(t *testing.T) {
	for _, ownership := range []bool{true, false} {
		t.Run(fmt.Sprintf("owned %t", ownership), func(t *testing.T) {
			injector, c, other := openFaulty(t)
			if !ownership {
				c.HideOwnership()
			}
			p := everything()
			must(t, c.Apply(load(p)))
			set := p.IPv4.Set("affinity")
			const clients = 400
			sweep := func() error {
				_, _, err := c.Sweep(t.Context(), table(nft.IPv4), set, unlessEndpoint(nft.IPv4, 1, 2))
				return err
			}
			fill := func() {
				injector.Decide(netlinkfault.None)
				must(t, c.Remember(table(nft.IPv4), set, rememberedBy(nft.IPv4, 0, clients)))
			}
			fill()
			awaitLearnt(t, c, nft.IPv4, set, clients)
			var places []netlinkfault.Place
			injector.Decide(func(at netlinkfault.Place) (netlinkfault.Fault, bool) {
				places = append(places, at)
				return netlinkfault.Fault{}, false
			})
			must(t, sweep())
			cases := 0
			for at, f := range faultsAt(places) {
				fill()
				before, err := c.Generation()
				must(t, err)
				injector.Decide(func(p netlinkfault.Place) (netlinkfault.Fault, bool) { return f, p.Number == at.Number })
				err = sweep()
				injector.Decide(netlinkfault.None)
				cases++
				what := fmt.Sprintf("%s at message %d, %s", f, at.Number, at)
				after, errGeneration := c.Generation()
				must(t, errGeneration)
				if int32(after-before) < 0 {
					t.Errorf("%s: a later transaction of another process would be hidden: the generation went from %d to %d", what,
						before, after)
				}
				if err == nil && f.Errno != unix.ENOENT && len(learnt(t, other, nft.IPv4, set)) != clients*8/10 {
					t.Errorf("%s: no error, and stale clients are left", what)
				}
				if err := sweep(); err != nil {
					t.Errorf("after %s: %v", what, err)
				}
				if n := len(learnt(t, other, nft.IPv4, set)); n != clients*8/10 {
					t.Errorf("after %s and another sweep: %d clients", what, n)
				}
			}
			t.Logf("%d cases", cases)
		})
	}
}

// TestFaultsOfApply: the batches of a Conn, each with one fault. Without an error the kernel has
// the batch. With a refusal it has none of it, and otherwise the outcome may be unknown.
func TestFaultsOfApply(t *testing.T) {
	t.Run("Linux 6.10", func(t *testing.T) { faultsOfApply(t, false) })
	t.Run("older", func(t *testing.T) { faultsOfApply(t, true) })
}

// faultsOfApply is TestFaultsOfApply with a kernel that acknowledges the end of a transaction, or
// an older one.
func faultsOfApply(t *testing.T, older bool) {
	injector, c, other := openFaulty(t)
	if older {
		injector.HideEnds()
	}
	p := services(40, 3)
	batch := load(p)
	var places []netlinkfault.Place
	injector.Decide(func(at netlinkfault.Place) (netlinkfault.Fault, bool) {
		places = append(places, at)
		return netlinkfault.Fault{}, false
	})
	must(t, c.Apply(batch))
	cases := 0
	for at, f := range faultsAt(places) {
		injector.Decide(netlinkfault.None)
		must(t, deleted(c))
		injector.Decide(func(p netlinkfault.Place) (netlinkfault.Fault, bool) { return f, p.Number == at.Number })
		err := c.Apply(batch)
		injector.Decide(netlinkfault.None)
		cases++
		m, errRead := other.Read(p)
		must(t, errRead)
		whole := m.Table(table(nft.IPv4)) != nil
		what := fmt.Sprintf("%s at message %d, %s", f, at.Number, at)
		var refused *kernel.BatchError
		switch {
		case err == nil && !whole:
			t.Errorf("%s: no error, and the kernel has nothing of the batch", what)
		case errors.As(err, &refused) && whole:
			t.Errorf("%s: the kernel has the batch although it refused it: %v", what, err)
		case err != nil && whole && !errors.Is(err, kernel.ErrOutcomeUnknown):
			t.Errorf("%s: the kernel has the batch, and its outcome is not said to be unknown: %v", what, err)
		}
		if whole && m.String() != modelOf(t, batch) {
			t.Errorf("%s: the kernel has part of the batch", what)
		}
	}
	t.Logf("%d cases", cases)
}

// deleted deletes the tables that are there.
func deleted(c *kernel.Conn) error {
	for _, f := range nft.Families() {
		err := c.Apply(nft.Batch{Ops: []nft.Op{nft.DeleteTable{Table: table(f)}}})
		if err != nil && !errors.Is(err, unix.ENOENT) {
			return err
		}
	}
	return nil
}

func modelOf(t *testing.T, b nft.Batch) string {
	t.Helper()
	m := nft.NewModel()
	must(t, strict.Apply(m, b))
	return m.String()
}

// A dump that the kernel could not go on with blocks no later one of the same socket.
func TestStuckDump(t *testing.T) {
	injector, c, _ := openFaulty(t)
	p := everything()
	must(t, c.Apply(load(p)))
	set := p.IPv4.Set("affinity")
	must(t, c.Remember(table(nft.IPv4), set, rememberedBy(nft.IPv4, 0, 10)))
	injector.Decide(func(p netlinkfault.Place) (netlinkfault.Fault, bool) {
		return netlinkfault.Fault{Kind: netlinkfault.Stuck}, p.Number == 0
	})
	if _, err := c.Learned(table(nft.IPv4), set); !errors.Is(err, unix.ENOBUFS) {
		t.Fatalf("the dump that gets stuck: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if left, _, err := c.Sweep(ctx, table(nft.IPv4), set, func(_, _ nft.Value) bool { return true }); err != nil ||
		left != 10 {
		t.Errorf("the next dump: %d clients, %v", left, err)
	}
}
