package testnet

// The API that is being filled in; every function below moves to its own file.

import (
	"context"
	"errors"
	"net/netip"
	"time"
)

// AddAddr gives an interface of the namespace an address, usable at once (no
// duplicate address detection).
func (ns *Namespace) AddAddr(link string, address netip.Prefix) error { return errors.ErrUnsupported }

// DelAddr takes an address away again.
func (ns *Namespace) DelAddr(link string, address netip.Prefix) error { return errors.ErrUnsupported }

// AddRoute adds a route to dst through the gateway via.
func (ns *Namespace) AddRoute(dst netip.Prefix, via netip.Addr) error { return errors.ErrUnsupported }

func (ns *Namespace) setUp(link string) error { return errors.ErrUnsupported }

// Protocols of servers and questions.
const (
	TCP  = "tcp"
	UDP  = "udp"
	SCTP = "sctp"
)

// Server answers every TCP connection, UDP datagram or SCTP INIT with its id
// and the peer address it saw.
type Server struct{}

// Serve starts a server on address in the namespace; port 0 picks one. TCP: one
// line "id peer", then the connection stays open and echoes until either side
// closes. UDP: one such line for each datagram. SCTP: an INIT ACK that carries
// the line as its state cookie.
func (ns *Namespace) Serve(proto string, address netip.AddrPort, id string) (*Server, error) {
	return nil, errors.ErrUnsupported
}

// ID returns the id given to Serve.
func (s *Server) ID() string { return "" }

// Addr returns the address that the server listens on.
func (s *Server) Addr() netip.AddrPort { return netip.AddrPort{} }

// Answered returns how many connections, datagrams or INITs were answered.
func (s *Server) Answered() uint64 { return 0 }

// Close stops the server and closes its connections.
func (s *Server) Close() error { return errors.ErrUnsupported }

// Outcome is what became of a question.
type Outcome string

// The outcomes of Ask.
const (
	Answered    Outcome = "answered"
	Refused     Outcome = "refused"     // TCP reset or ICMP port unreachable
	TimedOut    Outcome = "timed out"   // neither answer nor error in time
	Unreachable Outcome = "unreachable" // no route, ICMP host or net unreachable
)

// Answer is the outcome of Ask.
type Answer struct {
	Outcome Outcome
	ID      string         // the server's id; only if answered
	Peer    netip.AddrPort // the client as the server saw it; only if answered
	Local   netip.AddrPort // the client as it saw itself; differs from Peer if masqueraded
	Took    time.Duration  // from the first packet to the outcome
}

// Ask asks the server at `to` who it is, from a new socket of the namespace.
// The error is for what is none of the outcomes.
func (ns *Namespace) Ask(ctx context.Context, proto string, to netip.AddrPort, timeout time.Duration) (Answer, error) {
	return ns.AskFrom(ctx, proto, netip.AddrPort{}, to, timeout)
}

// AskFrom is Ask from a given source address (port 0: any).
func (ns *Namespace) AskFrom(ctx context.Context, proto string, from, to netip.AddrPort, timeout time.Duration) (Answer, error) {
	return Answer{}, errors.ErrUnsupported
}

// ParseAnswer reads the line that a server sends: its id and its peer.
func ParseAnswer(line string) (id string, peer netip.AddrPort, err error) {
	return "", netip.AddrPort{}, errors.ErrUnsupported
}

// SendSCTPInit sends one SCTP INIT. It needs no SCTP support in the kernel.
func (ns *Namespace) SendSCTPInit(src, dst netip.AddrPort) error { return errors.ErrUnsupported }

// SCTPInit is an INIT as it arrived.
type SCTPInit struct {
	From, To netip.AddrPort
}

// SCTPReceiver yields the INITs that arrive at an address.
type SCTPReceiver struct{}

// ListenSCTP receives INITs for address without answering them.
func (ns *Namespace) ListenSCTP(address netip.AddrPort) (*SCTPReceiver, error) {
	return nil, errors.ErrUnsupported
}

// Next waits for the next INIT.
func (r *SCTPReceiver) Next(ctx context.Context) (SCTPInit, error) {
	return SCTPInit{}, errors.ErrUnsupported
}

// Close stops receiving.
func (r *SCTPReceiver) Close() error { return errors.ErrUnsupported }

// Addrs are the addresses of one thing, of both families.
type Addrs []netip.Addr

// V4 returns the first IPv4 address, or the zero Addr.
func (a Addrs) V4() netip.Addr { return netip.Addr{} }

// V6 returns the first IPv6 address, or the zero Addr.
func (a Addrs) V6() netip.Addr { return netip.Addr{} }

// Config chooses how a topology is made. The zero value is a good one: a veth
// pair for each pod.
type Config struct {
	// Bridge, if set, is the name of a bridge on the node that all its pods are
	// ports of, as the bridge CNI plugin does ("cni0").
	Bridge string
}

// Topology is a node with pods, on a LAN with a client and, once a remote pod
// is added, a second node.
type Topology struct {
	Node    *Namespace // uplink "eth0", forwards, default route via Outside
	Outside *Namespace // a client beside the node; no route to pods or services
	Remote  *Namespace // the node of remote pods; nil before the first

	Uplink       string         // the node's interface to the LAN: "eth0"
	ClusterCIDRs []netip.Prefix // 10.244.0.0/16, fd00:244::/56
	PodCIDRs     []netip.Prefix // of this node: 10.244.0.0/24, fd00:244::/64
	NodeAddrs    Addrs          // 192.168.100.1, fd00:100::1
	OutsideAddrs Addrs          // 192.168.100.2, fd00:100::2
	RemoteAddrs  Addrs          // 192.168.100.3, fd00:100::3
}

// Pod is a namespace with addresses of the cluster CIDR.
type Pod struct {
	Name          string
	NS            *Namespace
	Addrs         Addrs
	HostInterface string // the node's end of the pod's link: "veth0", "veth1"...
}

// NewTopology makes the node and the client outside.
func NewTopology(config Config) (*Topology, error) { return nil, errors.ErrUnsupported }

// AddPod makes a pod on the node. Without addresses it gets the next free one
// of each family.
func (t *Topology) AddPod(name string, addrs ...netip.Addr) (*Pod, error) {
	return nil, errors.ErrUnsupported
}

// AddRemotePod makes a pod on the other node, 10.244.1.0/24 and
// fd00:244:0:1::/64 unless addresses are given.
func (t *Topology) AddRemotePod(name string, addrs ...netip.Addr) (*Pod, error) {
	return nil, errors.ErrUnsupported
}

// RemovePod removes a pod and its link at once.
func (t *Topology) RemovePod(name string) error { return errors.ErrUnsupported }

// Pod returns a pod by its name, or nil.
func (t *Topology) Pod(name string) *Pod { return nil }

// Close removes everything that the topology made.
func (t *Topology) Close() error { return errors.ErrUnsupported }

// Packet is a packet that a sniffer saw.
type Packet struct {
	Src, Dst netip.AddrPort // ports are 0 where the protocol has none
	Protocol uint8          // as in the IP header: 6 TCP, 17 UDP, 132 SCTP...
}

// Sniffer records packets towards some prefixes.
type Sniffer struct{}

// SniffUplink records, at the far end of the node's uplink, every packet that
// leaves the node towards one of the prefixes: a packet to a service address
// seen here left un-DNATed.
func (t *Topology) SniffUplink(prefixes ...netip.Prefix) (*Sniffer, error) {
	return nil, errors.ErrUnsupported
}

// Packets returns all packets seen so far. Whatever the node sent before the
// call is included. Lost packets are an error.
func (s *Sniffer) Packets() ([]Packet, error) { return nil, errors.ErrUnsupported }

// Close stops the sniffer.
func (s *Sniffer) Close() error { return errors.ErrUnsupported }

// TB is the part of testing.TB that NewForTest needs.
type TB interface {
	Helper()
	Name() string
	Cleanup(func())
	Skipf(format string, args ...any)
	Fatalf(format string, args ...any)
	Errorf(format string, args ...any)
}

// NewForTest is NewTopology for a test, closed at its end. Without the
// permissions the test is skipped, or fails if CI or REQUIRE_PRIVILEGED is set
// in the environment.
func NewForTest(t TB, config Config) *Topology { return nil }

// NamespaceForTest is New for a test, with the same rules as NewForTest.
func NamespaceForTest(t TB, name string) *Namespace { return nil }
