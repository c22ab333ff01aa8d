package main

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	daemonflows "nftproxy/daemon/flows"
	modelflows "nftproxy/model/flows"
	"nftproxy/model/printable"
	"nftproxy/model/service"
)

type flowsOptions struct {
	output
	nameOptions
	address  string
	like     int
	from, to string
	result   string
	follow   bool
	last     int
	since    time.Duration
	gzip     bool
}

func newFlowsCommand() *cobra.Command {
	var o flowsOptions
	cmd := &cobra.Command{
		Use:   "flows [NAME | NAMESPACE/NAME ...]",
		Short: "Show which clients connect to which Services, and what came of it",
		Long: `flows asks the nftproxy of this node for the connections to Services that it has
followed: those of the last minutes that have not ended, and the last ones that have.
It needs nftproxy run with --nftproxy-flows=1/N, and finds it as status does.

  TIME      when the first packet came
  CLIENT    the client's address and port, before any NAT
  SERVICE   namespace/name and the port's name or number
  WAY       cluster-ip, node-port, load-balancer or external-ip
  ENDPOINT  where the rules led it; - if nowhere
  RESULT    waiting, answered, refused, unanswered (for 5 s) or dropped; with a cause if
            the rules refused or dropped it, and without one if the endpoint refused it, or
            something else on this node dropped it
  ANSWER    the time to the first answer; - if there was none
  LASTED    how long it lasted, to about a second; - if it has not ended
  FROM, TO  bytes from the client and to it, as of the last look; each 8 s
  WEIGHT    how many connections it stands for

--follow shows flows as they come: when the result is known, and again when they end.

-o json and -o yaml print an object with node, time (the node's), since (none of the flows
that began after it has been forgotten), sinceIn (the same for each namespace; "" for all
others), flows and, if nftproxy cannot follow any now, error; with --follow one flow after
the other.
A flow has seq (grows with each change), id, begin, protocol, client, service, port, way,
address, endpoint (empty for none), result, cause, answerSeconds (null for none), ended,
seconds, packetsFrom, bytesFrom, packetsTo, bytesTo and weight. Later versions may add
fields; they do not change these.`,
		Example: `  nftproxy flows shop/cart
  nftproxy flows --result refused --last 20
  nftproxy flows --from 10.244.1.0/24 --follow -o json`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, names []string) error {
			shown, err := o.filter(names)
			if err != nil {
				return usageError{err}
			}
			server, err := (&statusOptions{address: o.address, like: o.like}).server()
			if err != nil {
				return usageError{err}
			}
			source := flowsSource{server, o.query(names), shown}
			if !o.gzip {
				return o.run(cmd.Context(), cmd.OutOrStdout(), source)
			}
			z := gzip.NewWriter(cmd.OutOrStdout())
			return errors.Join(o.run(cmd.Context(), z, source), z.Close())
		},
	}
	o.addFlag(cmd)
	o.addService(cmd)
	f := cmd.Flags()
	f.StringVar(&o.from, "from", "", "only flows of this client: an address or a CIDR")
	f.StringVar(&o.to, "to", "", "only flows to this address or endpoint: an address or a CIDR")
	f.StringVar(&o.result, "result", "", "only flows with this result: waiting, answered, refused, unanswered or dropped")
	f.BoolVarP(&o.follow, "follow", "f", false, "go on with flows as they come")
	const some = 100
	f.IntVar(&o.last, "last", some, "show so many of the last changed flows; 0: all")
	f.DurationVar(&o.since, "since", 0, "only flows that began within this `DURATION`, and open ones (default all)")
	f.BoolVar(&o.gzip, "gzip", false, "compress what is printed, to about a tenth")
	cmd.MarkFlagsMutuallyExclusive("gzip", "follow")
	f.StringVar(&o.address, "address", "", "`ADDRESS:PORT` of the metrics server")
	f.IntVar(&o.like, "like", 0, "ask the nftproxy run with this process `ID` (default 1)")
	addUntilStdinCloses(cmd)
	return cmd
}

// filter says which flows are shown.
func (o *flowsOptions) filter(names []string) (func(*modelflows.Flow) bool, error) {
	selected, err := o.selected(names)
	if err != nil {
		return nil, err
	}
	from, err := rangeOf("from", o.from)
	if err != nil {
		return nil, err
	}
	to, err := rangeOf("to", o.to)
	if err != nil {
		return nil, err
	}
	if o.result != "" && !slices.Contains(resultWords(), o.result) {
		return nil, unknownValue("result", o.result)
	}
	if err := cmp.Or(notNegative("last", o.last), notNegative("since", o.since)); err != nil {
		return nil, err
	}
	return func(f *modelflows.Flow) bool {
		return selected.Has(f.Service) && (!from.IsValid() || from.Contains(f.Client.Addr())) &&
			(!to.IsValid() || to.Contains(f.Address.Addr()) || to.Contains(f.Endpoint.Addr())) &&
			(o.result == "" || modelflows.Result(o.result) == f.Result)
	}, nil
}

// rangeOf reads an address or a CIDR; the zero value if there is none.
func rangeOf(flag, text string) (netip.Prefix, error) {
	if text == "" {
		return netip.Prefix{}, nil
	}
	if a, err := netip.ParseAddr(text); err == nil {
		return netip.PrefixFrom(a, a.BitLen()), nil
	}
	p, err := netip.ParsePrefix(text)
	if err != nil {
		return p, fmt.Errorf("--%s: %q is no address and no CIDR", flag, text)
	}
	return p, nil
}

// flowsSource is where flows come from, and which ones are shown.
type flowsSource struct {
	server string
	// names has the server say which of the Services it does not know.
	names url.Values
	shown func(*modelflows.Flow) bool
}

// after asks for the flows that have changed after a Seq, and returns the Seq of the last one.
func (s *flowsSource) after(ctx context.Context, names url.Values, since uint64) (daemonflows.Answer, uint64, error) {
	query := maps.Clone(names)
	if query == nil {
		query = url.Values{}
	}
	query.Set(daemonflows.QuerySince, strconv.FormatUint(since, 10))
	a, err := askFlows(ctx, s.server+daemonflows.Path+"?"+query.Encode())
	if n := len(a.Flows); n > 0 {
		since = a.Flows[n-1].Seq
	}
	a.Flows = slices.DeleteFunc(a.Flows, func(f modelflows.Flow) bool { return !s.shown(&f) })
	return a, since, err
}

// run shows the flows that there are, and with follow those that come.
func (o *flowsOptions) run(ctx context.Context, w io.Writer, source flowsSource) error {
	answer, since, err := source.after(ctx, source.names, 0)
	if err != nil {
		return err
	}
	if o.since > 0 {
		from := answer.Time.Add(-o.since)
		answer.Flows = slices.DeleteFunc(answer.Flows, func(f modelflows.Flow) bool {
			return f.Ended && !f.Begin.After(from)
		})
	}
	if o.last > 0 {
		answer.Flows = answer.Flows[max(0, len(answer.Flows)-o.last):]
	}
	if !o.follow {
		return cmp.Or(o.print(w, answer, func(w io.Writer) error { return writeFollowed(w, answer.Flows, true) }),
			silence(answer))
	}
	const pause = 500 * time.Millisecond
	for header := true; ; header = false {
		if err := cmp.Or(o.printFlows(w, answer.Flows, header), silence(answer)); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause):
		}
		// A Service may go meanwhile: it is no longer asked for by its name.
		answer, since, err = source.after(ctx, nil, since)
		if ctx.Err() != nil {
			return nil
		} else if err != nil {
			return err
		}
		answer.Flows = slices.DeleteFunc(answer.Flows, func(f modelflows.Flow) bool {
			return f.Result == modelflows.Waiting
		})
	}
}

// silence is the error of a node that follows nothing now: what it remembers may not be all.
func silence(a daemonflows.Answer) error {
	if a.Error == "" {
		return nil
	}
	return fmt.Errorf("nftproxy cannot follow connections on this node: %s", a.Error)
}

// printFlows prints flows of many.
func (o *flowsOptions) printFlows(w io.Writer, list []modelflows.Flow, header bool) error {
	if !o.structured() {
		return writeFollowed(w, list, header)
	}
	for i := range list {
		if err := o.printNext(w, &list[i], nil); err != nil {
			return err
		}
	}
	return nil
}

// askFlows asks for flows by a URL.
func askFlows(ctx context.Context, from string) (a daemonflows.Answer, err error) {
	response, err := request(ctx, client(), from)
	if err != nil {
		return a, err
	}
	defer response.Body.Close()
	const most = 64 << 20
	body, err := io.ReadAll(io.LimitReader(response.Body, most))
	switch {
	case err != nil:
		return a, fmt.Errorf("nftproxy's answer: %w", err)
	case response.StatusCode == http.StatusNotFound:
		return a, errors.New("nftproxy follows no connections on this node: start it with --" + flowsFlag + "=1/256")
	case response.StatusCode == http.StatusBadRequest:
		return a, usageError{errors.New(string(bytes.TrimSpace(body)))}
	case response.StatusCode != http.StatusOK:
		return a, fmt.Errorf("nftproxy shows no flows: %s: %s", response.Status, bytes.TrimSpace(body))
	}
	if err := json.Unmarshal(body, &a); err != nil {
		return a, fmt.Errorf("nftproxy's answer: %w", err)
	}
	return a, nil
}

// writeFollowed prints flows for people.
func writeFollowed(w io.Writer, list []modelflows.Flow, header bool) error {
	var b bytes.Buffer
	t := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	if header {
		fmt.Fprintln(t, "TIME\tCLIENT\tSERVICE\tWAY\tENDPOINT\tRESULT\tANSWER\tLASTED\tFROM\tTO\tWEIGHT")
	}
	for i := range list {
		f := &list[i]
		endpoint, answer, lasted := "-", "-", "-"
		if f.Endpoint.IsValid() {
			endpoint = f.Endpoint.String()
		}
		if s := f.AnswerSeconds; s != nil {
			answer = seconds(*s)
		}
		if f.Ended {
			lasted = seconds(f.Seconds)
		}
		result := strings.TrimSuffix(string(f.Result)+" "+f.Cause, " ")
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%d\t%d\t%d\n", f.Begin.Local().Format("15:04:05.000"), f.Client,
			printable.Text(string(f.Service)+":"+cmp.Or(f.Port, "-")+"/"+f.Protocol), f.Way, endpoint, result, answer, lasted,
			f.BytesFrom, f.BytesTo, f.Weight)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	_, err := w.Write(b.Bytes())
	return err
}

// flowsWords are the values of --nftproxy-flows, and resultWords those of --result.
func flowsWords() []string {
	words := []string{service.FlowsOff.String()}
	for _, f := range service.FlowsRates() {
		words = append(words, f.String())
	}
	return words
}

func resultWords() (words []string) {
	for _, r := range modelflows.Results() {
		words = append(words, string(r))
	}
	return words
}
