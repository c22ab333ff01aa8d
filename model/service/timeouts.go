package service

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Timeouts are how long connection tracking keeps a flow of one protocol after its last packet. The zero value leaves
// it to the node. Others are from the short lists of UnrepliedTimeouts, RepliedTimeouts and EstablishedTimeouts: the
// kernel has an object for each value in use, which stays as long as the tables, so that one Service's values must not
// take the room of others.
type Timeouts struct {
	// Protocol is UDP or TCP.
	Protocol Protocol
	// Unreplied and Replied are UDP's: until the endpoint has answered, and once the flow has had answers for two seconds
	// (since Linux 4.20, nf_conntrack_udp_packet). Unreplied is not longer than Replied.
	Unreplied, Replied time.Duration
	// Established is TCP's.
	Established time.Duration
}

// The lists lack 2m, 3m and 120h: the nft command does not print what are its own defaults, here 30s with 2m (0.9.8:
// 3m) and 120h, and cannot read an object without any time back.

// UnrepliedTimeouts are short, since anybody can send packets that nobody answers.
func UnrepliedTimeouts() []time.Duration {
	return []time.Duration{5 * time.Second, 10 * time.Second, 30 * time.Second, time.Minute, 5 * time.Minute,
		10 * time.Minute}
}

// RepliedTimeouts are the values of Timeouts.Replied.
func RepliedTimeouts() []time.Duration {
	return append([]time.Duration{5 * time.Second, 10 * time.Second, 15 * time.Second, 30 * time.Second, time.Minute,
		5 * time.Minute, 10 * time.Minute}, longTimeouts()...)
}

// longTimeouts are values of Timeouts.Replied and of Timeouts.Established.
func longTimeouts() []time.Duration {
	return []time.Duration{30 * time.Minute, time.Hour, 2 * time.Hour, 6 * time.Hour, 12 * time.Hour, 24 * time.Hour}
}

// EstablishedTimeouts are the values of Timeouts.Established. The kernel's default is 120h.
func EstablishedTimeouts() []time.Duration {
	return slices.Concat([]time.Duration{time.Minute, 5 * time.Minute, 10 * time.Minute}, longTimeouts(),
		[]time.Duration{72 * time.Hour, 168 * time.Hour})
}

// TimeoutsOf returns those that the service asks for.
func (o *Options) TimeoutsOf(p Protocol) Timeouts {
	switch p {
	case UDP:
		return o.UDPTimeouts
	case TCP:
		return o.TCPTimeouts
	}
	return Timeouts{}
}

// SetTimeouts sets those of their protocol.
func (o *Options) SetTimeouts(t Timeouts) {
	switch t.Protocol {
	case UDP:
		o.UDPTimeouts = t
	case TCP:
		o.TCPTimeouts = t
	}
}

// The keys of the options.
const (
	UDPTimeoutsKey = "udp-timeouts"
	TCPTimeoutKey  = "tcp-established-timeout"
)

// ParseUDPTimeouts reads two times, such as 30s,10m. The error says what is allowed, and nothing about the value.
func ParseUDPTimeouts(value string) (Timeouts, error) {
	first, second, _ := strings.Cut(value, ",")
	unreplied, known := timeoutOf(first, UnrepliedTimeouts())
	replied, repliedKnown := timeoutOf(second, RepliedTimeouts())
	if !known || !repliedKnown || unreplied > replied {
		return Timeouts{}, fmt.Errorf("not UNREPLIED,REPLIED such as 30s,10m, with UNREPLIED of %s, and REPLIED as long or "+
			"longer, of %s", timeoutWords(UnrepliedTimeouts()), timeoutWords(RepliedTimeouts()))
	}
	return Timeouts{Protocol: UDP, Unreplied: unreplied, Replied: replied}, nil
}

func udpTimeoutsOption() option {
	return option{
		key: UDPTimeoutsKey,
		set: func(o *Options, value string) error {
			t, err := ParseUDPTimeouts(value)
			if err != nil {
				return fmt.Errorf("%w; the node's time-outs are in force", err)
			}
			o.UDPTimeouts = t
			return nil
		},
		get: func(o *Options) string {
			if t := o.UDPTimeouts; t != (Timeouts{}) {
				return timeoutText(t.Unreplied) + "," + timeoutText(t.Replied)
			}
			return ""
		},
	}
}

func tcpTimeoutOption() option {
	return option{
		key: TCPTimeoutKey,
		set: func(o *Options, value string) error {
			d, known := timeoutOf(value, EstablishedTimeouts())
			if !known {
				return fmt.Errorf("not one of %s; the node's time-out is in force", timeoutWords(EstablishedTimeouts()))
			}
			o.TCPTimeouts = Timeouts{Protocol: TCP, Established: d}
			return nil
		},
		get: func(o *Options) string {
			if t := o.TCPTimeouts; t != (Timeouts{}) {
				return timeoutText(t.Established)
			}
			return ""
		},
	}
}

// timeoutOf reads a time that is in the list, in any form: 60s is 1m.
func timeoutOf(text string, list []time.Duration) (d time.Duration, known bool) {
	d, err := time.ParseDuration(strings.TrimSpace(text))
	return d, err == nil && slices.Contains(list, d)
}

// timeoutText is a time of the lists with one unit: 30s, 10m, 2h.
func timeoutText(d time.Duration) string {
	switch {
	case d%time.Hour == 0:
		return fmt.Sprintf("%dh", d/time.Hour)
	case d%time.Minute == 0:
		return fmt.Sprintf("%dm", d/time.Minute)
	}
	return fmt.Sprintf("%ds", d/time.Second)
}

func timeoutWords(list []time.Duration) string {
	words := make([]string, len(list))
	for i, d := range list {
		words[i] = timeoutText(d)
	}
	last := len(words) - 1
	return strings.Join(words[:last], ", ") + " or " + words[last]
}

// String is, for example, "udp-30s-10m" or "tcp-2h", and empty for the zero value.
func (t Timeouts) String() string {
	switch t.Protocol {
	case UDP:
		return "udp-" + timeoutText(t.Unreplied) + "-" + timeoutText(t.Replied)
	case TCP:
		return "tcp-" + timeoutText(t.Established)
	}
	return ""
}

// ParseTimeouts reads what String returned; the zero value for another text.
func ParseTimeouts(text string) Timeouts {
	protocol, times, _ := strings.Cut(text, "-")
	var o Options
	switch protocol {
	case "udp":
		t, _ := ParseUDPTimeouts(strings.Replace(times, "-", ",", 1))
		return t
	case "tcp":
		if o.Set(TCPTimeoutKey, times) == nil {
			return o.TCPTimeouts
		}
	}
	return Timeouts{}
}
