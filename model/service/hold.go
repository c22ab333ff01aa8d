package service

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"nftproxy/model/spelling"
)

// NoEndpointsKey is the option that says what becomes of connections to a port without endpoints.
const NoEndpointsKey = "no-endpoints"

// DefaultHold is the Options.Hold of "hold" alone: the longest by which a client of Linux still learns that it is
// refused. Its kernel sends the first packet of TCP again for the last time after 63 s, since Linux 6.5 after 67 s
// (net.ipv4.tcp_syn_retries 6, net.ipv4.tcp_syn_linear_timeouts 4), and then only waits until 127 or 131 s.
const DefaultHold = time.Minute

// MaxHold is the greatest Options.Hold. A client of Linux gives up by then.
const MaxHold = 2 * time.Minute

func noEndpointsOption() option {
	return option{
		key: NoEndpointsKey,
		set: func(o *Options, value string) error {
			after, timed := strings.CutPrefix(value, "hold=")
			switch {
			case value == "refuse":
				o.Hold = 0
				return nil
			case value == "hold":
				o.Hold = DefaultHold
				return nil
			case timed:
				if d, ok := wholeSeconds(after, MaxHold); ok {
					o.Hold = d
					return nil
				}
			}
			word, _, _ := strings.Cut(value, "=")
			meant := ""
			if !timed {
				meant = spelling.DidYouMean(word, []string{"refuse", "hold"})
			}
			return fmt.Errorf("not refuse, hold or hold=TIME with whole seconds from 1s to %dm, such as hold=30s; %srefuse is "+
				"in force", int(MaxHold.Minutes()), meant)
		},
		get: func(o *Options) string {
			switch o.Hold {
			case 0:
				return ""
			case DefaultHold:
				return "hold"
			}
			return "hold=" + strconv.Itoa(int(o.Hold.Seconds())) + "s"
		},
	}
}
