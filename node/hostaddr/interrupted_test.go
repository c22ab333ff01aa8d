package hostaddr

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"nftproxy/test/lib/testnet"
)

// TestInterrupted: a dump that the kernel interrupts is repeated until it is complete.
// Any other error ends the list.
func TestInterrupted(t *testing.T) {
	want := []netip.Addr{netip.MustParseAddr("192.0.2.7")}
	for name, interruption := range map[string]error{"flag": netlink.ErrDumpInterrupted, "EINTR": unix.EINTR} {
		for _, interruptions := range []int{0, 1, triesInARow - 1, triesInARow, 20 * triesInARow} {
			t.Run(fmt.Sprintf("%s %d times", name, interruptions), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					start, dumps := time.Now(), 0
					got, err := listWith(t.Context(), "addresses", func() (Addresses, error) {
						if dumps++; dumps <= interruptions {
							return Addresses{}, interruption
						}
						return Addresses{Own: slices.Repeat(want, 2)}, nil
					})
					got.sort()
					if err != nil || !slices.Equal(got.Own, want) || dumps != interruptions+1 {
						t.Errorf("%v, %v after %d dumps", got, err, dumps)
					}
					if took := time.Since(start); took > 0 != (interruptions >= triesInARow) || took > 20*longestWait {
						t.Errorf("waited for %s", took)
					}
				})
			})
		}
	}
	t.Run("for ever", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			dumps := 0
			_, err := listWith(ctx, "addresses", func() (Addresses, error) { dumps++; return Addresses{}, unix.EINTR })
			if !errors.Is(err, unix.EINTR) || dumps > 100*triesInARow {
				t.Errorf("%v after %d dumps", err, dumps)
			}
		})
	})
	refused := errors.New("no")
	if _, err := listWith(t.Context(), "addresses", func() (Addresses, error) {
		return Addresses{}, refused
	}); !errors.Is(err, refused) {
		t.Errorf("another error: %v", err)
	}
}

// TestChurn: interfaces with addresses come and go all the time. Each run of Follow
// sees an address come and go, logs no warning and leaves nothing behind.
func TestChurn(t *testing.T) {
	ns := testnet.NamespaceForTest(t, "hostaddr")
	testnet.ChurnForTest(t, ns)
	starts, most := 0, 25
	if testing.Short() {
		most = 5
	}
	testnet.CheckLeaks(t, func(t *testing.T) {
		for range most {
			starts++
			followOnce(t, ns, starts)
		}
	})
}

// followOnce runs Follow until it has seen an address come and go.
func followOnce(t *testing.T, ns *testnet.Namespace, n int) {
	t.Helper()
	lo, err := ns.Handle().LinkByName("lo")
	if err != nil {
		t.Fatal(err)
	}
	address, err := netlink.ParseAddr(fmt.Sprintf("192.0.2.%d/32", n%250+1))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	told, ended := make(chan []netip.Addr), make(chan error, 1)
	var log bytes.Buffer
	go func() {
		ended <- ns.Do(func() error {
			return Follow(ctx, slog.New(slog.NewTextHandler(&log, nil)), func(a Addresses) {
				select {
				case told <- a.Own:
				case <-ctx.Done():
				}
			})
		})
	}()
	wanted, _ := netip.AddrFromSlice(address.IP)
	until := func(there bool) {
		t.Helper()
		for a := range told {
			if slices.Contains(a, wanted.Unmap()) == there {
				return
			}
		}
	}
	until(false)
	if err := ns.Handle().AddrAdd(lo, address); err != nil {
		t.Fatal(err)
	}
	until(true)
	if err := ns.Handle().AddrDel(lo, address); err != nil {
		t.Fatal(err)
	}
	until(false)
	cancel()
	if err := <-ended; err != nil || log.Len() > 0 {
		t.Errorf("start %d: %v, logged:\n%s", n, err, log.String())
	}
}
