package conntrack

import (
	"encoding/binary"
	"net/netip"
	"os"
	"testing"

	"github.com/ti-mo/netfilter"
	"golang.org/x/sys/unix"

	"nftproxy/model/service"
	"nftproxy/test/arbitrary"
)

// receiver is a socket on which one datagram is queued.
func receiver(t *testing.T, datagram []byte) *socket {
	t.Helper()
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	file := os.NewFile(uintptr(pair[0]), "answers")
	t.Cleanup(func() {
		if err := file.Close(); err != nil {
			t.Error(err)
		}
	})
	if err := unix.Sendto(pair[1], datagram, 0, nil); err != nil {
		t.Fatal(err)
	}
	if err := unix.Close(pair[1]); err != nil {
		t.Fatal(err)
	}
	raw, err := file.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	return &socket{raw: raw, calls: systemCalls{}, buf: make([]byte, readBuffer)}
}

// FuzzAnswers: whatever a kernel answers, a dump ends, with flows that can be deleted by
// their names and judged, in bounded memory. A number of entries is not negative.
func FuzzAnswers(f *testing.F) {
	var dump []byte
	for i, flow := range []Flow{flow(service.UDP, "10.96.0.1:80", 0), flow(service.TCP, "[fd00:96::1]:80", 0), flow(icmpv6, "[fd00::1]:128", 0)} {
		flow.ID, flow.Zone = uint32(i), uint16(i)
		m := deleteRequest(&flow)
		dump = appendAnswer(dump, uint16(m.Header.Type), m.Data)
	}
	f.Add(dump)
	f.Add(appendAnswer(dump, unix.NLMSG_DONE, make([]byte, 4)))
	f.Add(appendAnswer(nil, unix.NLMSG_ERROR, binary.NativeEndian.AppendUint32(nil, ^uint32(unix.EBUSY)+1)))
	stats := request(ctStats, netfilter.ProtoUnspec, 0, be32(ctaStatsEntries, 5), be32(ctaStatsMaxEntries, 7))
	f.Add(appendAnswer(nil, uint16(stats.Header.Type), stats.Data))
	index := NewIndex(Options{})
	b := service.NewBuilder(service.Node{Name: "node-0"})
	b.Set(&service.Service{
		Name: "ns/svc", ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.1")},
		Ports: []service.Port{{Protocol: service.UDP, Port: 80, Endpoints: service.MergeEndpoints([]service.Endpoint{{Addr: netip.MustParseAddrPort("10.0.0.1:80"), Ready: true, Serving: true}})}},
	})
	index.Update(b.Snapshot())
	f.Fuzz(func(t *testing.T, datagram []byte) {
		if len(datagram) == 0 || len(datagram) > readBuffer {
			return
		}
		arbitrary.Bounded(t, 8<<20+256*uint64(len(datagram)), func() { checkAnswers(t, receiver(t, datagram), index) })
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

func checkAnswers(t *testing.T, s *socket, index *Index) {
	seen := 0
	d := dumping{sequence: 1, yield: func(f Flow) error {
		seen++
		if _, err := parseFlow(deleteRequest(&f).Data); err != nil {
			t.Errorf("the deletion of %v cannot be read: %v", f, err)
		}
		index.Stale(f)
		index.Owner(f)
		if f.String() == "" {
			t.Error("a flow without words")
		}
		return nil
	}}
	messages := 0
	for m, err := range s.receive() {
		if err != nil {
			break
		}
		messages++
		entries, limit, err := parseCount(m.data)
		if err == nil && (entries < 0 || limit < 0) {
			t.Errorf("%d entries of %d", entries, limit)
		}
		if d.handle(m) != nil || d.done {
			break
		}
	}
	if seen > messages {
		t.Errorf("%d flows in %d messages", seen, messages)
	}
}
