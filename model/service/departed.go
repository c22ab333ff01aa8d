package service

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"nftproxy/model/spelling"
)

// Departed says what becomes of an established connection of TCP or SCTP to an endpoint that leaves the service: one
// that its EndpointSlices do not have any more, in whatever state it was. Flows of UDP always go to another endpoint
// then.
type Departed struct {
	Fate DepartedFate
	// After is how long a connection may go on before it is cut, in whole seconds, MaxCutAfter at most.
	After time.Duration
}

// DepartedFate is what is done about the connection.
type DepartedFate uint8

// DepartedAsNode leaves it to the node's --nftproxy-conntrack-clean-established. DepartedKeep leaves the connection
// alone. DepartedCut has the client's next packet answered by a reset.
const (
	DepartedAsNode DepartedFate = iota
	DepartedKeep
	DepartedCut
)

// MaxCutAfter is the greatest Departed.After. A node has to remember the endpoint for so long.
const MaxCutAfter = time.Hour

func departedOption() option {
	return option{
		key: "departed-connections",
		set: func(o *Options, value string) error {
			after, timed := strings.CutPrefix(value, "cut-after=")
			switch {
			case value == "keep":
				o.Departed = Departed{Fate: DepartedKeep}
				return nil
			case value == "cut":
				o.Departed = Departed{Fate: DepartedCut}
				return nil
			case timed:
				if d, ok := wholeSeconds(after, MaxCutAfter); ok {
					o.Departed = Departed{DepartedCut, d}
					return nil
				}
			}
			word, _, _ := strings.Cut(value, "=")
			meant := ""
			if !timed {
				meant = spelling.DidYouMean(word, []string{"keep", "cut", "cut-after"})
			}
			return fmt.Errorf("not keep, cut or cut-after=TIME with whole seconds from 1s to %dh, such as cut-after=30s; "+
				"%sthe node's --nftproxy-conntrack-clean-established is in force",
				int(MaxCutAfter.Hours()), meant)
		},
		get: func(o *Options) string {
			switch d := o.Departed; {
			case d.Fate == DepartedKeep:
				return "keep"
			case d.Fate == DepartedCut && d.After > 0:
				return "cut-after=" + strconv.Itoa(int(d.After.Seconds())) + "s"
			case d.Fate == DepartedCut:
				return "cut"
			}
			return ""
		},
	}
}

// wholeSeconds reads a time such as 1m30s, from 1s to most.
func wholeSeconds(text string, most time.Duration) (d time.Duration, ok bool) {
	d, err := time.ParseDuration(text)
	return d, err == nil && d >= time.Second && d <= most && d%time.Second == 0
}

// UDPHandling says what becomes of UDP flows to an endpoint that terminates and does not serve any more, while the
// EndpointSlices still have it (KEP-5989).
type UDPHandling uint8

// UDPDefault has their next packets go to another endpoint. UDPPreserve leaves the flows alone until the endpoint is
// gone.
const (
	UDPDefault UDPHandling = iota
	UDPPreserve
)
