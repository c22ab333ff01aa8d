package flows

import (
	"net/netip"
	"time"

	"nftproxy/model/service"
)

// Key is one direction of a connection.
type Key struct {
	Protocol service.Protocol
	Src, Dst netip.AddrPort
}

// Way says by which kind of address a client came.
type Way string

// The ways.
const (
	ByClusterIP    Way = "cluster-ip"
	ByNodePort     Way = "node-port"
	ByLoadBalancer Way = "load-balancer"
	ByExternalIP   Way = "external-ip"
)

// Owner is the Service that has an address and port.
type Owner struct {
	Service service.Name
	// Port is the port's name or number.
	Port string
	Way  Way
}

// Result says what came of a connection.
type Result string

// The results.
const (
	// Waiting: there is no answer yet, and Patience is not over.
	Waiting  Result = "waiting"
	Answered Result = "answered"
	// Refused: by the endpoint, with a TCP reset or an ICMP error; or by the rules, for the Cause.
	Refused Result = "refused"
	// Unanswered: no answer came in Patience.
	Unanswered Result = "unanswered"
	// Dropped: the rules dropped it, for the Cause, or others did on this node, if there is no Cause.
	Dropped Result = "dropped"
)

// Results lists all results.
func Results() []Result { return []Result{Waiting, Answered, Refused, Unanswered, Dropped} }

// Flow is what is known of one connection. The help of nftproxy flows promises the names in the JSON.
type Flow struct {
	// Seq grows with each change of a flow, and ID stays.
	Seq uint64 `json:"seq"`
	ID  uint64 `json:"id"`
	// Begin is when the first packet came.
	Begin    time.Time      `json:"begin"`
	Protocol string         `json:"protocol"`
	Client   netip.AddrPort `json:"client"`
	Service  service.Name   `json:"service"`
	Port     string         `json:"port"`
	Way      Way            `json:"way"`
	// Address is where the client sent to. Endpoint is where that led; not valid if nowhere.
	Address  netip.AddrPort `json:"address"`
	Endpoint netip.AddrPort `json:"endpoint"`
	Result   Result         `json:"result"`
	// Cause is why the rules refused or dropped it; empty if they did not.
	Cause string `json:"cause"`
	// AnswerSeconds is the time from the first packet to the first answer; nil if there was none, or nobody saw when.
	AnswerSeconds *float64 `json:"answerSeconds"`
	// Ended says that the connection has ended. Then Seconds is how long it lasted, to about a second, and the numbers
	// are final: of packets and bytes from the client, and of those to it.
	Ended       bool    `json:"ended"`
	Seconds     float64 `json:"seconds"`
	PacketsFrom uint64  `json:"packetsFrom"`
	BytesFrom   uint64  `json:"bytesFrom"`
	PacketsTo   uint64  `json:"packetsTo"`
	BytesTo     uint64  `json:"bytesTo"`
	Weight      int     `json:"weight"`
	settled     bool
}

// Start is the first packet of a connection.
type Start struct {
	Key
	// At is when the packet came, by the clock of answers; zero if the kernel does not say. Seen is when the process took
	// it: no change of the node's time moves it.
	At, Seen time.Time
	// Rate is how many connections there are for each one in the sample.
	Rate int
	// Cause is why the rules refuse or drop it, and Refused that they refuse it; empty if they do neither.
	Cause   string
	Refused bool
}

// Answer is the first packet of an answer.
type Answer struct {
	// Reply is the direction of the answer: from the endpoint to the client, at its own address.
	Reply Key
	// At and Seen are those of Start. Answers are taken behind the first packets of their connections.
	At, Seen time.Time
	// Refused: it is a TCP reset or an ICMP error.
	Refused bool
}

// Entry is what connection tracking knows.
type Entry struct {
	// ID tells it from a later entry with the same addresses.
	ID       uint32
	Endpoint netip.AddrPort
	// Replied says that packets went in both directions.
	Replied bool
	// Closing is the time-out, as far as is known, that an ended TCP connection's entry began with; 0 if it has not ended.
	Closing time.Duration
	// Timeout is the time until the kernel drops the entry, in whole seconds.
	Timeout                                    time.Duration
	PacketsFrom, BytesFrom, PacketsTo, BytesTo uint64
}

// Change says what a report is about.
type Change struct {
	Flow
	// Settled says that the result is known now: once for each flow. Finished says that it has just ended.
	Settled, Finished bool
}
