package conntrack

import (
	"encoding/binary"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"nftproxy/model/service"
	"nftproxy/model/snapshots"
	"nftproxy/nfnetlink"
	"nftproxy/test/check"
)

// answering is a kernel that has one answer to everything.
type answering struct{ datagram []byte }

func (a *answering) Send(int, [][]byte) error { return nil }

func (a *answering) Read(_ int, b []byte) (int, error) {
	if a.datagram == nil {
		return 0, unix.EAGAIN
	}
	n := copy(b, a.datagram)
	a.datagram = nil
	return n, nil
}

func requester(datagram []byte) nfnetlink.Requester {
	return nfnetlink.Requester{Socket: nfnetlink.New(0, &answering{datagram}), Subsystem: unix.NFNL_SUBSYS_CTNETLINK}
}

// FuzzAnswers: whatever a kernel answers, a dump ends, with flows that can be deleted by
// their names and judged, in bounded memory. A number of entries is not negative.
func FuzzAnswers(f *testing.F) {
	var dump []byte
	for i, flow := range []Flow{flow(service.UDP, "10.96.0.1:80", 0), flow(service.TCP, "[fd00:96::1]:80", 0),
		flow(icmpv6, "[fd00::1]:128", 0)} {
		flow.ID, flow.Zone = uint32(i), uint16(i)
		m := deletion(&flow)
		dump = appendAnswer(dump, m.Kind, m.Body)
	}
	f.Add(dump)
	f.Add(appendAnswer(dump, unix.NLMSG_DONE, make([]byte, 4)))
	f.Add(appendAnswer(nil, unix.NLMSG_ERROR, binary.NativeEndian.AppendUint32(nil, ^uint32(unix.EBUSY)+1)))
	stats := nfnetlink.Encoder{B: make([]byte, nfnetlink.BodyAt-nfnetlink.HeaderLen)}
	stats.Uint32(ctaStatsEntries, 5).Uint32(ctaStatsMaxEntries, 7)
	f.Add(appendAnswer(nil, unix.NFNL_SUBSYS_CTNETLINK<<8|ctStats, stats.B))
	index := NewIndex(Options{})
	b := snapshots.NewBuilder(service.Node{Name: "node-0"})
	b.Set(&service.Service{
		Name: "ns/svc", ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.1")},
		Ports: []service.Port{{Protocol: service.UDP, Port: 80,
			Endpoints: service.MergeEndpoints([]service.Endpoint{{Addr: netip.MustParseAddrPort("10.0.0.1:80"), Ready: true,
				Serving: true}})}},
	})
	index.Update(b.Snapshot())
	f.Fuzz(func(t *testing.T, datagram []byte) {
		if len(datagram) == 0 || len(datagram) >= nfnetlink.ReadBuffer {
			return
		}
		check.Bounded(t, 8<<20+256*uint64(len(datagram)), func() { checkAnswers(t, datagram, index) })
	})
}

// appendAnswer adds a message to a datagram, with the sequence number 1.
func appendAnswer(b []byte, kind uint16, data []byte) []byte {
	b = binary.NativeEndian.AppendUint32(b, uint32(unix.SizeofNlMsghdr+len(data)))
	b = binary.NativeEndian.AppendUint16(b, kind)
	b = binary.NativeEndian.AppendUint16(b, 0)
	b = binary.NativeEndian.AppendUint32(b, 1)
	b = append(binary.NativeEndian.AppendUint32(b, 0), data...)
	for len(b)%unix.NLMSG_ALIGNTO != 0 {
		b = append(b, 0)
	}
	return b
}

func checkAnswers(t *testing.T, datagram []byte, index *Index) {
	table := &Table{dumps: requester(datagram), counts: requester(datagram)}
	seen := 0
	err := table.Flows(t.Context(), Filter{}, func(f Flow) error {
		seen++
		if _, err := parseFlow(deletion(&f).Attributes()); err != nil {
			t.Errorf("the deletion of %v cannot be read: %v", f, err)
		}
		index.Stale(f)
		index.Owner(f)
		if f.String() == "" {
			t.Error("a flow without words")
		}
		return nil
	})
	messages := 0
	ended := false
	for m := range nfnetlink.Messages(datagram) {
		messages++
		ended = ended || m.Seq == 1 && (m.Kind == unix.NLMSG_DONE || m.Kind == unix.NLMSG_ERROR)
	}
	if seen > messages {
		t.Errorf("%d flows in %d messages", seen, messages)
	}
	if err == nil && !ended {
		t.Error("a dump without end is no error")
	}
	if entries, limit, err := table.Count(t.Context()); err == nil && (entries < 0 || limit < 0) {
		t.Errorf("%d entries of %d", entries, limit)
	}
	table.counts = requester(datagram)
	if packets, err := table.Invalid(t.Context()); err != nil && packets != 0 {
		t.Errorf("%d invalid packets with error %v", packets, err)
	}
}
