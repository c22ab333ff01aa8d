package main

import (
	"archive/tar"
	"cmp"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"

	"nftproxy/cmd/kubectl-nftproxy/cluster"
)

// The bounds on an archive.
const (
	// dumpPatience is how long one node may take for all of its files, and verifiesAtOnce how many nodes list all objects
	// at the same time.
	dumpPatience   = 3 * time.Minute
	verifiesAtOnce = 4
	// maxFile is the size of one file before compression, and maxArchive that of all, in bytes.
	maxFile    = 16 << 20
	maxArchive = 2 << 30
	// logLines is how many of the last lines of a log are there.
	logLines = 5000
)

type sysdumpCommand struct {
	*plugin
	chosenNodes
	file    string
	redact  bool
	timeout time.Duration
}

func (p *plugin) newSysdumpCommand() *cobra.Command {
	c := &sysdumpCommand{plugin: p}
	cmd := &cobra.Command{
		Use:   "sysdump",
		Short: "Write one archive with the state of all nodes, to send to somebody who helps",
		Long: `sysdump writes one archive (tar.gz). For each node it has the output of nftproxy's status,
get, verify, check, conntrack and proxies, the metrics, the configuration and the last
5,000 lines of the log; for the cluster the Services, EndpointSlices, Nodes, nftproxy's
DaemonSet and its events. README.md in it says where to begin, and what is missing.

It has no Secrets and no ConfigMaps, and of objects no environment, no managed fields,
and no annotations but nftproxy's. --redact replaces addresses and the names of
namespaces, Services, pods and nodes that it finds, each by the same word everywhere,
and leaves out labels, selectors and identifiers of machines and clouds. Other names
stay, such as those of ports, of interfaces, and of the API server's host: look through
the archive before you send it.

A file has at most 16 MiB, the archive 2 GiB before compression. Each node may take 3
minutes, and all of them --timeout.`,
		Example: `  kubectl nftproxy sysdump
  kubectl nftproxy sysdump --redact --node=worker-3 -f for-support.tar.gz`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return c.run(cmd.Context()) },
	}
	f := cmd.Flags()
	c.addNodeFlag(f)
	f.StringVarP(&c.file, "file", "f", "", "the `FILE` to write (default nftproxy-sysdump-TIME.tar.gz)")
	f.BoolVar(&c.redact, "redact", false, "replace addresses and names")
	f.DurationVar(&c.timeout, "timeout", 15*time.Minute, "how long all nodes may take")
	return cmd
}

func (c *sysdumpCommand) run(ctx context.Context) (err error) {
	of, nodes, err := c.nodesOf(ctx, c.nodes)
	if err != nil {
		return err
	}
	now := time.Now().UTC()
	name := cmp.Or(c.file, "nftproxy-sysdump-"+now.Format("20060102-150405")+".tar.gz")
	file, err := os.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer func() {
		if err = cmp.Or(err, file.Close()); err != nil {
			err = errors.Join(err, os.Remove(name))
		}
	}()
	a := newArchive(file, now)
	a.redactor = c.redactor()
	c.dumpObjects(ctx, of, a)
	verifies := make(chan struct{}, verifiesAtOnce)
	asked, cancel := context.WithTimeoutCause(ctx, c.timeout, fmt.Errorf("not within %s", c.timeout))
	defer cancel()
	round := cluster.DefaultRound(c.terminal())
	round.Patience = dumpPatience
	_, _ = cluster.Each(asked, nodes, round, func(ctx context.Context, n *cluster.Node) struct{} {
		dumpNode(ctx, of, n, a, verifies)
		return struct{}{}
	})
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if asked.Err() != nil {
		a.miss("some nodes", context.Cause(asked))
	}
	if err := a.finish(len(nodes)); err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	fmt.Fprintf(c.Out, "%s has the state of %d nodes", name, len(nodes))
	if n := len(a.missing); n > 0 {
		fmt.Fprintf(c.Out, "; %d files could not be had, which its README.md lists", n)
	}
	fmt.Fprintln(c.Out)
	return nil
}

func (c *sysdumpCommand) redactor() *redactor {
	if !c.redact {
		return nil
	}
	return newRedactor("default", "kube-system", "kubernetes", "kube-dns", "nftproxy", c.proxyNamespace)
}

// nodeFile is a file that an archive has for each node: what a command of nftproxy prints.
type nodeFile struct {
	name string
	args []string
}

func nodeFiles() []nodeFile {
	return []nodeFile{
		{"status.json", []string{"status", "-o", "json"}},
		{"version.json", []string{"version", "-o", "json"}},
		{"services.json", []string{"get", "services", "-o", "json"}},
		{"endpoints.json", []string{"get", "endpoints", "-o", "json"}},
		{"chains.txt", []string{"get", "chains", "-o", "wide"}},
		{"chains.json", []string{"get", "chains", "-o", "json"}},
		{"verify.json", []string{"verify", "-o", "json"}},
		{"check.txt", []string{"check"}},
		{"proxies.txt", []string{"proxies"}},
		{"conntrack-sysctl.json", []string{"conntrack", "sysctl", "-o", "json"}},
		{"refusals.json", []string{"top", "-o", "json"}},
		{"metrics.txt", []string{"status", "--raw", "/metrics"}},
		{"configuration.json", []string{"status", "--raw", "/configz"}},
		{"flags.txt", []string{"status", "--raw", "/flagz"}},
	}
}

// dumpNode adds the files of one node. What cannot be had is said in the archive. verifies has a place for each node
// that lists all objects.
func dumpNode(ctx context.Context, of *cluster.Cluster, n *cluster.Node, a *archive, verifies chan struct{}) {
	for _, f := range nodeFiles() {
		if a.full() {
			return
		}
		if f.args[0] == "verify" {
			verifies <- struct{}{}
		}
		text, err := of.Ask(ctx, n, append(f.args, tablesOf(n, f.args[0])...)...)
		if f.args[0] == "verify" {
			<-verifies
		}
		if exit := (*cluster.ExitError)(nil); errors.As(err, &exit) && len(text) > 0 {
			err = nil // The text says what is wrong.
		}
		a.add("nodes", n.Name, f.name, text, err)
	}
	if n.Pod == nil {
		return
	}
	lines := int64(logLines)
	for name, previous := range map[string]bool{"log.txt": false, "log-before-restart.txt": true} {
		if previous && restarts(n.Pod) == 0 {
			continue
		}
		log, err := of.Client.CoreV1().Pods(n.Pod.Namespace).GetLogs(n.Pod.Name, &corev1.PodLogOptions{
			Container: cluster.Container, TailLines: &lines, Previous: previous}).Stream(ctx)
		var text []byte
		if err == nil {
			text, err = io.ReadAll(io.LimitReader(log, maxFile))
			err = errors.Join(err, log.Close())
		}
		a.add("nodes", n.Name, name, text, err)
	}
}

// tablesOf returns the flag that names the node's tables, for the commands that have it.
func tablesOf(n *cluster.Node, command string) []string {
	if slices.Contains([]string{"get", "top"}, command) {
		return n.Tables()
	}
	return nil
}

func restarts(p *corev1.Pod) (n int32) {
	for _, s := range p.Status.ContainerStatuses {
		n += s.RestartCount
	}
	return n
}

// dumpObjects adds the objects of the API server, without what an archive must not have. The redactor learns their
// names first.
func (c *sysdumpCommand) dumpObjects(ctx context.Context, of *cluster.Cluster, a *archive) {
	core, all := of.Client.CoreV1(), metav1.ListOptions{}
	services, servicesErr := core.Services("").List(ctx, all)
	endpoints, endpointsErr := of.Client.DiscoveryV1().EndpointSlices("").List(ctx, all)
	nodes, nodesErr := core.Nodes().List(ctx, all)
	sets, setsErr := of.DaemonSets(ctx)
	pods, podsErr := core.Pods(of.Namespace).List(ctx, metav1.ListOptions{LabelSelector: cluster.Selector})
	told, toldErr := core.Events("").List(ctx, metav1.ListOptions{
		FieldSelector: fields.OneTermEqualSelector("reportingComponent", "nftproxy").String()})
	events, eventsErr := core.Events(of.Namespace).List(ctx, all)
	for i := range itemsOf(services).Items {
		clean(&services.Items[i].ObjectMeta)
	}
	for i := range itemsOf(endpoints).Items {
		clean(&endpoints.Items[i].ObjectMeta)
	}
	for i := range itemsOf(nodes).Items {
		n := &nodes.Items[i]
		clean(&n.ObjectMeta)
		n.Status.Images, n.Status.VolumesAttached, n.Status.VolumesInUse = nil, nil, nil
	}
	for i := range sets {
		clean(&sets[i].ObjectMeta)
		clean(&sets[i].Spec.Template.ObjectMeta)
		cleanSpec(&sets[i].Spec.Template.Spec)
	}
	for i := range itemsOf(pods).Items {
		clean(&pods.Items[i].ObjectMeta)
		cleanSpec(&pods.Items[i].Spec)
	}
	ours := slices.DeleteFunc(itemsOf(events).Items, func(e corev1.Event) bool {
		return !slices.ContainsFunc(sets, func(s appsv1.DaemonSet) bool {
			return strings.HasPrefix(e.InvolvedObject.Name, s.Name)
		})
	})
	for _, f := range []struct {
		name string
		list any
		err  error
	}{
		{"services.json", services, servicesErr}, {"endpointslices.json", endpoints, endpointsErr},
		{"nodes.json", nodes, nodesErr}, {"daemonsets.json", sets, setsErr}, {"pods.json", pods, podsErr},
		{"events.json", told, toldErr}, {"events-of-daemonset.json", ours, eventsErr},
	} {
		text, err := json.MarshalIndent(f.list, "", "  ")
		if f.err != nil {
			text, err = nil, f.err
		}
		a.add("cluster", "", f.name, text, err)
	}
}

// itemsOf returns the list, or an empty one in place of none.
func itemsOf[L any](list *L) *L {
	if list == nil {
		return new(L)
	}
	return list
}

// cleanSpec removes from the spec of a pod the environment, and all of containers that are not nftproxy but the name.
func cleanSpec(spec *corev1.PodSpec) {
	for _, list := range [][]corev1.Container{spec.InitContainers, spec.Containers} {
		for i := range list {
			list[i].Env, list[i].EnvFrom = nil, nil
			if list[i].Name != cluster.Container {
				list[i] = corev1.Container{Name: list[i].Name}
			}
		}
	}
}

// clean removes from an object's metadata what has nothing to do with nftproxy, and may say too much.
func clean(m *metav1.ObjectMeta) {
	m.ManagedFields = nil
	for key := range m.Annotations {
		if !strings.HasPrefix(key, "nftproxy.io/") {
			delete(m.Annotations, key)
		}
	}
}

// archive is a tar.gz that several goroutines add files to.
type archive struct {
	redactor *redactor // nil for none

	mu      sync.Mutex
	zip     *gzip.Writer
	tar     *tar.Writer
	at      time.Time
	size    int64
	missing []string
	err     error
}

func newArchive(w io.Writer, at time.Time) *archive {
	zip := gzip.NewWriter(w)
	return &archive{zip: zip, tar: tar.NewWriter(zip), at: at}
}

// add adds the file of a folder, and there of a node's folder if it has one; or it notes why the file is missing.
func (a *archive) add(folder, node, file string, text []byte, err error) {
	if a.redactor != nil {
		var redactErr error
		if text, redactErr = a.redactor.file(file, text); err == nil {
			err = redactErr
		}
		node = a.redactor.node(node)
	}
	if len(text) > maxFile {
		text = append(text[:maxFile:maxFile], "\n(cut here)\n"...)
	}
	name := path.Join(folder, node, file)
	if err != nil {
		a.miss(name, err)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(text) > 0 {
		a.write(name, text)
	}
}

// miss notes why something is missing.
func (a *archive) miss(what string, err error) {
	why := err.Error()
	if a.redactor != nil {
		why = a.redactor.text(why)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.missing = append(a.missing, fmt.Sprintf("%s: %s", what, firstLine(why)))
}

// full says whether nothing more can be added.
func (a *archive) full() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.err != nil || a.size >= maxArchive
}

func firstLine(s string) string {
	line, _, _ := strings.Cut(s, "\n")
	return line
}

func (a *archive) write(name string, text []byte) {
	if a.size += int64(len(text)); a.size >= maxArchive {
		a.missing = append(a.missing, fmt.Sprintf("%s: the archive has %d GiB", name, maxArchive>>30))
		return
	}
	if a.err == nil {
		a.err = a.tar.WriteHeader(&tar.Header{Name: "nftproxy-sysdump/" + name, Mode: 0o600, Size: int64(len(text)),
			ModTime: a.at})
	}
	if a.err == nil {
		_, a.err = a.tar.Write(text)
	}
}

// finish adds the README and ends the archive.
func (a *archive) finish(nodes int) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	slices.Sort(a.missing)
	a.size = 0 // There is room for this one.
	a.write("README.md", []byte(sysdumpReadme(a.at, nodes, a.redactor != nil, a.missing)))
	return errors.Join(a.err, a.tar.Close(), a.zip.Close())
}

func sysdumpReadme(at time.Time, nodes int, redacted bool, missing []string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "# nftproxy sysdump\n\nThe state of %d nodes at %s", nodes, at.Format(time.RFC3339))
	if redacted {
		b.WriteString(", with addresses and names replaced")
	}
	b.WriteString(`.

Begin here:

1. nodes/*/status.json: is the node well (ready, healthy, behind, warnings), what does it serve, which Services have
   trouble.
2. nodes/*/verify.json: are the tables what the objects ask for (same, differences).
3. nodes/*/services.json: what refuses or drops connections to a Service on that node (obstacles).
4. nodes/*/log.txt: what happened.
5. cluster/events.json: what nftproxy said about Services and Nodes.

nodes/*/ has more: endpoints.json, chains.txt and chains.json (the rules as text), check.txt, proxies.txt,
conntrack-sysctl.json, refusals.json (refused and dropped packets), metrics.txt, configuration.json and flags.txt.
cluster/ has the objects, and events-of-daemonset.json what happened to nftproxy's own pods.
`)
	if len(missing) > 0 {
		b.WriteString("\nWhat could not be had, or came with an error:\n\n")
		for _, m := range missing {
			fmt.Fprintf(&b, "- %s\n", m)
		}
	}
	return b.String()
}
