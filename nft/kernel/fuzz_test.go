package kernel

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"nftproxy/model/service"
	"nftproxy/model/snapshots"
	"nftproxy/nfnetlink"
	"nftproxy/nft"
	"nftproxy/nft/ruleset"
	"nftproxy/test/check"
	"nftproxy/test/check/strict"
	"nftproxy/test/gen"
)

// dumper answers requests like a kernel whose tables are in the messages.
type dumper struct {
	messages []nfnetlink.Message
	// answers is the other end of the reader's socket.
	answers int
}

// newDumper takes messages as a batch or a dump has them.
func newDumper(data []byte) *dumper {
	d := &dumper{}
	for m := range nfnetlink.Messages(data) {
		if m.Attributes() != nil {
			m.Body = bytes.Clone(m.Body)
			if m.Kind&0xff == unix.NFT_MSG_NEWSET && m.Attributes().Uint32(attrSetCount) > 1000 {
				continue // no kernel counts elements that are not there
			}
			d.messages = append(d.messages, m)
		}
	}
	return d
}

// connect returns a Conn that asks the dumper. It can only read.
func (d *dumper) connect(t *testing.T) *Conn {
	t.Helper()
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	d.answers = pair[1]
	s := nfnetlink.New(pair[0], sending{nfnetlink.Kernel{}, func(buffers [][]byte, _ func() error) error {
		return d.answer(bytes.Join(buffers, nil))
	}})
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		if err := unix.Close(d.answers); err != nil {
			t.Error(err)
		}
	})
	c := &Conn{}
	for _, r := range []*nfnetlink.Requester{&c.reader, &c.sweeper, &c.counts} {
		r.Socket, r.Subsystem = s, unix.NFNL_SUBSYS_NFTABLES
	}
	c.writer = nfnetlink.New(-1, nfnetlink.Kernel{}) // it owns no table
	return c
}

// answer queues the messages of the kind that is asked for.
func (d *dumper) answer(request []byte) error {
	for m := range nfnetlink.Messages(request) {
		kind := m.Kind & 0xff
		set := m.Attributes().Get(unix.NFTA_SET_ELEM_LIST_SET)
		var b []byte
		sent := 0
		for _, have := range d.messages {
			if have.Kind&0xff != kind-1 { // NFT_MSG_NEWX is one before NFT_MSG_GETX
				continue
			}
			if kind == unix.NFT_MSG_GETSETELEM && !bytes.Equal(have.Attributes().Get(unix.NFTA_SET_ELEM_LIST_SET), set) {
				continue
			}
			if have.Body[0] != m.Body[0] && kind != unix.NFT_MSG_GETGEN {
				continue // of the other family
			}
			if len(have.Body) > nfnetlink.ReadBuffer/2 || sent == 8 && kind != unix.NFT_MSG_GETSETELEM &&
				m.Flags&unix.NLM_F_DUMP == 0 {
				continue
			}
			sent++
			b = appendMessage(b, have.Kind, have.Flags&unix.NLM_F_DUMP_INTR, m.Seq, have.Body)
			if len(b) > nfnetlink.ReadBuffer/2 {
				if err := d.send(b); err != nil {
					return err
				}
				b = nil
			}
		}
		switch {
		case m.Flags&unix.NLM_F_DUMP == unix.NLM_F_DUMP:
			b = appendMessage(b, unix.NLMSG_DONE, 0, m.Seq, make([]byte, 4))
		case kind == unix.NFT_MSG_GETGEN && sent == 0:
			b = appendMessage(b, unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_NEWGEN, 0, m.Seq, generationOne())
		case sent == 0:
			b = appendMessage(b, unix.NLMSG_ERROR, 0, m.Seq, binary.NativeEndian.AppendUint32(nil, ^uint32(unix.ENOENT)+1))
			b = append(b, make([]byte, nfnetlink.HeaderLen)...)
			binary.NativeEndian.PutUint32(b[len(b)-nfnetlink.HeaderLen-nfnetlink.HeaderLen-4:], 2*nfnetlink.HeaderLen+4)
		}
		if err := d.send(b); err != nil {
			return err
		}
	}
	return nil
}

// send queues one datagram. One that finds no room is lost, as in a busy kernel.
func (d *dumper) send(b []byte) error {
	if err := unix.Sendto(d.answers, b, unix.MSG_DONTWAIT, nil); err != unix.EAGAIN {
		return err
	}
	return nil
}

func generationOne() []byte {
	var e nfnetlink.Encoder
	e.B = make([]byte, nfnetlink.BodyAt-nfnetlink.HeaderLen)
	e.Uint32(unix.NFTA_GEN_ID, 1)
	return e.B
}

func appendMessage(b []byte, kind, flags uint16, seq uint32, body []byte) []byte {
	at := len(b)
	b = binary.NativeEndian.AppendUint32(b, uint32(nfnetlink.HeaderLen+len(body)))
	b = binary.NativeEndian.AppendUint16(b, kind)
	b = binary.NativeEndian.AppendUint16(b, flags)
	b = binary.NativeEndian.AppendUint32(b, seq)
	b = append(binary.NativeEndian.AppendUint32(b, 0), body...)
	for len(b)-at < nfnetlink.Align(len(b)-at) {
		b = append(b, 0)
	}
	return b
}

// fuzzedProgram is what the reader of FuzzRead wants. It has everything that programs have.
func fuzzedProgram(t testing.TB) *nft.Program {
	t.Helper()
	rng := rand.New(rand.NewPCG(7, 15))
	for {
		cfg, _ := gen.Config(rng)
		node := gen.Node(rng)
		b := snapshots.NewBuilder(node)
		b.SetServiceCIDRs(gen.ServiceCIDRs(rng))
		for _, s := range gen.Services(rng, &node)[:3] {
			b.Set(s)
		}
		p := ruleset.Compile(cfg, b.Snapshot())
		if !cfg.Uncounted && p.IPv4.Sets.Len() > p.IPv6.Sets.Len()+2 {
			return p
		}
	}
}

// encoded is the program as a kernel dumps it, nearly: in the messages that write it.
func encoded(t testing.TB, p *nft.Program) []byte {
	t.Helper()
	batch, _ := nft.State{}.Plan(p, time.Time{})
	var e batchEncoder
	e.reset(1, nil, false)
	if err := e.addBatch(batch); err != nil {
		t.Fatal(err)
	}
	var b []byte
	for m := range nfnetlink.Messages(e.B) {
		body := m.Body
		if m.Kind&0xff == unix.NFT_MSG_NEWCHAIN && m.Attributes().Get(unix.NFTA_CHAIN_HOOK) != nil {
			policy := nfnetlink.Encoder{B: bytes.Clone(body)} // which a kernel adds
			policy.Uint32(unix.NFTA_CHAIN_POLICY, uint32(nft.Accept))
			body = policy.B
		}
		b = appendMessage(b, m.Kind, 0, 0, body)
	}
	return b
}

// FuzzRead: whatever a kernel answers, the tables are read without a panic and in bounded
// memory, and a plan is made for them. If a kernel could hold what was read, the plan makes
// it what the program says.
func FuzzRead(f *testing.F) {
	want := fuzzedProgram(f)
	whole := encoded(f, want)
	f.Add(whole)
	at := 0
	for m := range nfnetlink.Messages(whole) { // and in pieces, which the fuzzer changes faster
		n := nfnetlink.Align(nfnetlink.HeaderLen + len(m.Body))
		if kind := m.Kind & 0xff; kind == unix.NFT_MSG_NEWSET || kind == unix.NFT_MSG_NEWRULE ||
			kind == unix.NFT_MSG_NEWSETELEM {
			f.Add(whole[at : at+n])
		}
		at += n
	}
	prefix := whole[:0:0]
	for m := range nfnetlink.Messages(whole) {
		if m.Kind&0xff == unix.NFT_MSG_NEWTABLE {
			prefix = appendMessage(prefix, m.Kind, 0, 0, m.Body)
		}
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		check.Bounded(t, 64<<20+4096*uint64(len(data)), func() {
			checkRead(t, append(prefix[:len(prefix):len(prefix)], data...), want)
		})
	})
}

func checkRead(t *testing.T, data []byte, want *nft.Program) {
	c := newDumper(data).connect(t)
	for _, f := range nft.Families() {
		if _, err := c.Rules(want.Table(f).ID()); err != nil {
			t.Logf("rules: %v", err)
		}
		for _, s := range want.Table(f).Sets.All() {
			_ = c.AllCounts(want.Table(f).ID(), s, func(Count) {})
			if s.Dynamic {
				_, _ = c.Learned(want.Table(f).ID(), s)
			}
		}
	}
	m, err := c.Read(want)
	if err != nil {
		return
	}
	_ = m.String()
	ruleset.ReadBack(m, want.IPv4.Name, &service.Node{Name: "node-0"})
	batch, _ := nft.Adopt(m, want).Plan(want, time.Time{})
	if strict.Apply(m, nft.Batch{}) != nil {
		return // no kernel would hold this
	}
	if err := strict.Apply(m, batch); err != nil {
		t.Fatalf("%v\n%s", err, batch)
	}
	if diff := check.Diff(want, m); diff != "" {
		t.Fatalf("(-want +got):\n%s", diff)
	}
}

// TestReadOwnMessages: a table that is read from the messages that write it is the program's.
func TestReadOwnMessages(t *testing.T) {
	want := fuzzedProgram(t)
	m, err := newDumper(encoded(t, want)).connect(t).Read(want)
	if err != nil {
		t.Fatal(err)
	}
	if batch, _ := nft.Adopt(m, want).Plan(want, time.Time{}); !batch.Empty() {
		t.Errorf("the plan for what was read is not empty:\n%s", batch)
	}
}

// TestReadReservesForWhatItReads: Read does not read the maps that remember clients. It
// reserves no memory for their elements.
func TestReadReservesForWhatItReads(t *testing.T) {
	want := fuzzedProgram(t)
	d := newDumper(encoded(t, want))
	counted := 0
	for i, m := range d.messages {
		if m.Kind&0xff == unix.NFT_MSG_NEWSET && m.Attributes().Uint32(unix.NFTA_SET_FLAGS)&unix.NFT_SET_EVAL != 0 {
			e := nfnetlink.Encoder{B: m.Body}
			e.Uint32(attrSetCount, 1<<20)
			d.messages[i].Body = e.B
			counted++
		}
	}
	c := d.connect(t)
	check.Bounded(t, 32<<20, func() {
		if _, err := c.Read(want); err != nil {
			t.Error(err)
		}
	})
	if counted < 2 {
		t.Errorf("only %d maps of clients", counted)
	}
}
