package testnet_test

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"testing"

	"nftproxy/test/lib/testnet"
)

func TestSCTPInitArrives(t *testing.T) {
	top := testnet.NewForTest(t, testnet.Config{})
	a, b := addPod(t, top.AddPod, "a"), addPod(t, top.AddPod, "b")
	for family, pick := range map[string]func(testnet.Addrs) netip.Addr{
		"IPv4": testnet.Addrs.V4, "IPv6": testnet.Addrs.V6} {
		t.Run(family, func(t *testing.T) {
			src, dst := netip.AddrPortFrom(pick(a.Addrs), 5000), netip.AddrPortFrom(pick(b.Addrs), 3868)
			r, err := b.NS.ListenSCTP(dst)
			if err != nil {
				t.Fatal(err)
			}
			for _, to := range []netip.AddrPort{netip.AddrPortFrom(dst.Addr(), 1), dst} { // only one is for the receiver
				if err := a.NS.SendSCTPInit(src, to); err != nil {
					t.Fatal(err)
				}
			}
			ctx, cancel := context.WithTimeout(context.Background(), enough)
			defer cancel()
			got, err := r.Next(ctx)
			if err != nil {
				t.Fatal(err)
			}
			if got.From != src || got.To != dst {
				t.Errorf("received an INIT from %v to %v, want from %v to %v", got.From, got.To, src, dst)
			}

			ended, end := context.WithCancel(context.Background())
			end()
			if _, err := r.Next(ended); !errors.Is(err, context.Canceled) {
				t.Errorf("Next with an ended context: %v", err)
			}
			if err := a.NS.SendSCTPInit(src, dst); err != nil {
				t.Fatal(err)
			}
			if _, err := r.Next(ctx); err != nil {
				t.Errorf("Next after an ended context: %v", err)
			}
			if err := r.Close(); err != nil {
				t.Error(err)
			}
			if _, err := r.Next(ctx); !errors.Is(err, net.ErrClosed) {
				t.Errorf("Next after Close: %v", err)
			}
		})
	}
}
