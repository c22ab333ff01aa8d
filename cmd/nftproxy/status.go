package main

import (
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/util/duration"

	"nftproxy/daemon/statuspage"
	"nftproxy/look/inspect"
	"nftproxy/look/nodestatus"
	"nftproxy/model/printable"
)

// The exit status of status where something is wrong, and where it could not tell.
const (
	statusFaults    exitStatus = 1
	statusNotAsked  exitStatus = 2
	statusPatience             = 10 * time.Second
	statusMaxAnswer            = 1 << 20
)

type statusOptions struct {
	output
	nameOptions
	address, raw string
	like         int
}

func newStatusCommand() *cobra.Command {
	var o statusOptions
	cmd := &cobra.Command{
		Use:   "status [NAME | NAMESPACE/NAME ...]",
		Short: "Say whether the nftproxy of this node is well, and what it serves",
		Long: `status asks the nftproxy that runs on this node, by its metrics server, and prints:
whether its rules are in the kernel, its last update of them, which lists of the API
server it does not follow, how many Services and endpoints it serves, which Services
somebody has to look after, which endpoints are left out because they do not answer,
and what else is wrong with the node, such as another service proxy.

With a Service, NAME with -n NAMESPACE or NAMESPACE/NAME, it says of Services and
endpoints only what is about that one. A NAME alone is that of any namespace.

It finds the server by the flags of the nftproxy run that is process 1, as in
nftproxy's pod; --like names another process, --address the server itself.

The exit status is 0 if all is well, 1 if something is wrong with the node, and 2 if
nftproxy does not answer. What is wrong with objects, such as a mistyped annotation,
or with endpoints is shown and does not count.

-o json and -o yaml print an object with node, version, time, started, ready,
readyText, healthy, tables (family, name, updated, error), lastSync (end,
latencySeconds, tookSeconds, written, error), behind (resources, since, error),
warnings, services, endpoints, elements, states (Services by their worst state),
troubled (namespace, name, states, problems), troubledCount, leftOut (namespace,
service, endpoint, protocol, since, why), leftOutCount, configuration (a digest of all
flags but the node's name) and faults, which are what counts for the exit status. A
list has at most 50 entries. Later versions may add fields; they do not change these.`,
		Example: `  nftproxy status
  nftproxy status -o json --address 127.0.0.1:10249
  kubectl -n kube-system exec POD -- /nftproxy status`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, names []string) error {
			server, err := o.server()
			_, bad := o.selected(names)
			if err = cmp.Or(err, bad); err != nil {
				return usageError{err}
			}
			faults := 0
			if o.raw != "" {
				err = writeRaw(cmd.Context(), cmd.OutOrStdout(), server+o.raw)
			} else if s, askErr := askStatus(cmd.Context(), server+statuspage.Path+"?"+
				strings.TrimSuffix(nodestatus.Query+"&"+o.query(names).Encode(), "&")); askErr != nil {
				err = askErr
			} else {
				faults, err = len(s.Faults), o.print(cmd.OutOrStdout(), s, func(w io.Writer) error {
					return writeStatus(w, s, o.namespace != "" || len(names) > 0)
				})
			}
			switch {
			case err != nil:
				fmt.Fprintf(cmd.ErrOrStderr(), "nftproxy: %v\n", err)
				return statusNotAsked
			case faults > 0:
				return statusFaults
			}
			return nil
		},
	}
	o.addFlag(cmd)
	o.addNamespace(cmd)
	f := cmd.Flags()
	f.StringVar(&o.address, "address", "", "`ADDRESS:PORT` of the metrics server")
	f.IntVar(&o.like, "like", 0, "ask the nftproxy run with this process `ID` (default 1)")
	f.StringVar(&o.raw, "raw", "", "print what the metrics server has at this `PATH`, such as /metrics or /configz")
	return cmd
}

// server is the metrics server's URL.
func (o *statusOptions) server() (string, error) {
	err := notNegative("like", o.like)
	if err == nil && o.raw != "" && !strings.HasPrefix(o.raw, "/") {
		err = fmt.Errorf("--raw: %q is no path, such as /metrics", o.raw)
	}
	if err != nil {
		return "", err
	}
	scheme, address := "http", cmp.Or(o.address, defaultMetricsAddress)
	if o.address == "" {
		given, err := runFlagsOf(cmp.Or(o.like, 1))
		switch {
		case err != nil && o.like > 0:
			return "", fmt.Errorf("--like: %w", err)
		case err == nil:
			c, err := given.config(nil)
			if err != nil {
				return "", err
			}
			if c.MetricsAddress == "" {
				return "", errors.New("nftproxy runs without a metrics server, which has the status (--metrics-bind-address)")
			}
			address = c.MetricsAddress
			if c.MetricsTLS.Certificate != "" {
				scheme = "https"
			}
		}
	}
	at, err := net.ResolveTCPAddr("tcp", address)
	if err != nil {
		return "", fmt.Errorf("the metrics server's address %q: %w", address, err)
	}
	host := at.IP
	if host == nil || host.IsUnspecified() {
		host = net.IPv4(127, 0, 0, 1)
	}
	return scheme + "://" + net.JoinHostPort(host.String(), strconv.Itoa(at.Port)), nil
}

// client asks a server that is a process of this node. Its certificate has the name by which others ask it.
func client() *http.Client {
	return &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}},
		Timeout: statusPatience}
}

// request asks for a URL. The caller closes the body.
func request(ctx context.Context, c *http.Client, url string) (*http.Response, error) {
	get, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, fmt.Errorf("the metrics server's address: %w", err)
	}
	response, err := c.Do(get)
	if err != nil {
		return nil, fmt.Errorf("nftproxy does not answer: %w", err)
	}
	return response, nil
}

// writeRaw writes what the server has at a URL.
func writeRaw(ctx context.Context, w io.Writer, url string) error {
	response, err := request(ctx, client(), url)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("nftproxy has nothing there: %s", response.Status)
	}
	_, err = io.Copy(w, response.Body)
	return err
}

// askStatus asks the server, again if that has no time now.
func askStatus(ctx context.Context, url string) (*nodestatus.Status, error) {
	ctx, cancel := context.WithTimeout(ctx, statusPatience)
	defer cancel()
	c := client()
	for {
		s, wait, err := askOnce(ctx, c, url)
		if wait == 0 {
			return s, err
		}
		select {
		case <-ctx.Done():
			return nil, err
		case <-time.After(wait):
		}
	}
}

// askOnce returns how long to wait before another try, 0 for none.
func askOnce(ctx context.Context, client *http.Client, url string) (s *nodestatus.Status, wait time.Duration,
	err error) {
	response, err := request(ctx, client, url)
	if err != nil {
		return nil, 0, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, statusMaxAnswer))
	if err != nil {
		return nil, 0, fmt.Errorf("nftproxy's answer: %w", err)
	}
	if response.StatusCode != http.StatusOK {
		var refusal nodestatus.Refusal
		_ = json.Unmarshal(body, &refusal)
		seconds, _ := strconv.Atoi(response.Header.Get("Retry-After"))
		return nil, time.Duration(seconds) * time.Second, fmt.Errorf("nftproxy gives no status: %s",
			cmp.Or(refusal.Error, response.Status))
	}
	if err := json.Unmarshal(body, &s); err != nil || s == nil {
		return nil, 0, fmt.Errorf("nftproxy is older than this command, and has no status (%v)", err)
	}
	return s, 0, nil
}

// writeStatus prints a status for people: of all Services, or of some.
func writeStatus(w io.Writer, s *nodestatus.Status, some bool) error {
	const padding = 3
	t := tabwriter.NewWriter(w, 0, 0, padding, ' ', 0)
	row := func(name, format string, args ...any) {
		fmt.Fprintf(t, "%s\t%s\n", name, printable.Text(fmt.Sprintf(format, args...)))
	}
	ago := func(at time.Time) string { return duration.HumanDuration(s.Time.Sub(at)) }
	row("Node", "%s", s.Node)
	row("Version", "%s, running for %s", s.Version, ago(s.Started))
	row("Ready", "%s", yesNo(s.Ready))
	for _, table := range s.Tables {
		switch {
		case table.Error != "":
			row("Rules for "+table.Family, "not in force: %s", table.Error)
		case table.Updated == nil:
			row("Rules for "+table.Family, "not in force yet")
		default:
			row("Rules for "+table.Family, "in force, last written or confirmed %s ago", ago(*table.Updated))
		}
	}
	if l := s.LastSync; l != nil {
		took := cmp.Or(l.LatencySeconds, l.TookSeconds)
		row("Last update", "%s ago, %d written, took %s", ago(l.End), l.Written, seconds(took))
	}
	if some {
		row("Serves", "of these: %s with %s", inspect.Plural(s.Services, "Service"), inspect.Plural(s.Endpoints, "endpoint"))
	} else {
		row("Serves", "%d Services with %d endpoints in %d elements", s.Services, s.Endpoints, s.Elements)
	}
	for _, fault := range s.Faults {
		row("Wrong", "%s", fault)
	}
	for _, svc := range s.Troubled {
		row("Service", "%s: %s: %s", strings.TrimPrefix(svc.Namespace+"/"+svc.Name, "/"), strings.Join(svc.States, ", "),
			fewSentences(svc.Problems))
	}
	if more := s.TroubledCount - len(s.Troubled); more > 0 {
		row("", "%d more Services with trouble", more)
	}
	for _, e := range s.LeftOut {
		row("Left out", "%s/%s of %s/%s for %s: %s", e.Endpoint, e.Protocol, e.Namespace, e.Service, ago(e.Since), e.Why)
	}
	if more := s.LeftOutCount - len(s.LeftOut); more > 0 {
		row("", "%d more endpoints left out", more)
	}
	return t.Flush()
}

// seconds is a time such as 4ms or 1.2s.
func seconds(s float64) string {
	d := time.Duration(s * float64(time.Second))
	switch {
	case d >= time.Second:
		return d.Round(time.Second / 10).String()
	case d >= time.Millisecond:
		return d.Round(time.Millisecond).String()
	}
	return d.Round(time.Microsecond).String()
}
