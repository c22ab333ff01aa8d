package watch

import (
	"context"
	"fmt"
	"math/rand"
	"net/netip"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	apiwatch "k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/randfill"
	"sigs.k8s.io/yaml"

	"nftproxy/test/lib/controlplane"
)

// field is a field of a Service or an EndpointSlice.
type field struct {
	// path names it from the object, with a 0 for the only item of a list: spec.ports.0.protocol.
	path string
	// means is the value that an absent field stands for, as YAML; none if there is no such value, and unread for a
	// field that changes nothing.
	means string
	// by is who says so: the API server, which fills the field in, or the field's documentation.
	by filler
	// other is a value that means something else. It is for fields whose value in the object is what means says.
	other string
}

const (
	none   = "none"
	unread = "unread"
)

// filler says who gives an absent field its meaning.
type filler string

const (
	// written is SetDefaults_Service and SetDefaults_EndpointPort (pkg/apis/core/v1/defaults.go and
	// pkg/apis/discovery/v1/defaults.go, Kubernetes 1.38), which run when an object is read from etcd.
	written filler = "defaults"
	// read is defaultOnReadService (pkg/registry/core/service/storage/storage.go). In the cycle of 1.38, watches were
	// without it (kubernetes/kubernetes#143291).
	read filler = "defaults on read"
	// documented is the field's documentation (k8s.io/api, types.go). The API server leaves the field absent.
	documented filler = "documentation"
)

const absentService = `
apiVersion: v1
kind: Service
metadata: {name: web, namespace: default}
spec:
  type: LoadBalancer
  clusterIP: 10.96.7.1
  clusterIPs: [10.96.7.1, "fd00:10:96::701"]
  ipFamilies: [IPv4, IPv6]
  ipFamilyPolicy: RequireDualStack
  externalIPs: [198.51.100.1]
  loadBalancerIP: 203.0.113.1
  loadBalancerClass: example.com/class
  loadBalancerSourceRanges: [192.0.2.0/24]
  allocateLoadBalancerNodePorts: true
  externalName: web.example.com
  internalTrafficPolicy: Local
  externalTrafficPolicy: Local
  healthCheckNodePort: 32001
  publishNotReadyAddresses: true
  trafficDistribution: PreferSameZone
  sessionAffinity: ClientIP
  sessionAffinityConfig: {clientIP: {timeoutSeconds: 60}}
  selector: {app: web}
  ports: [{name: http, protocol: UDP, appProtocol: http, port: 80, targetPort: 8080, nodePort: 32000}]
status:
  loadBalancer:
    ingress: [{ip: 203.0.113.1, ipMode: VIP, hostname: web.example.com, ports: [{port: 80, protocol: UDP}]}]
  conditions: [{type: Ready, status: "True", reason: Known, message: yes it is, lastTransitionTime: "2026-01-01T00:00:00Z"}]
`

// fieldsOfService are all fields of spec and status.
func fieldsOfService() []field {
	return []field{
		{path: "spec.type", means: "ClusterIP", by: written},
		{path: "spec.clusterIP", means: none},
		{path: "spec.clusterIPs", means: "[10.96.7.1]", by: read},
		{path: "spec.ipFamilies", means: "[IPv4, IPv6]", by: read, other: "[IPv4]"},
		{path: "spec.ipFamilyPolicy", means: unread},
		{path: "spec.externalIPs", means: none},
		{path: "spec.loadBalancerIP", means: unread},
		{path: "spec.loadBalancerClass", means: unread},
		{path: "spec.loadBalancerSourceRanges", means: none},
		{path: "spec.allocateLoadBalancerNodePorts", means: unread},
		{path: "spec.externalName", means: unread},
		{path: "spec.internalTrafficPolicy", means: "Cluster", by: written},
		{path: "spec.externalTrafficPolicy", means: "Cluster", by: written},
		{path: "spec.healthCheckNodePort", means: none},
		{path: "spec.publishNotReadyAddresses", means: unread},
		{path: "spec.trafficDistribution", means: unread},
		{path: "spec.sessionAffinity", means: "None", by: written},
		{path: "spec.sessionAffinityConfig", means: "{clientIP: {timeoutSeconds: 10800}}", by: written},
		{path: "spec.sessionAffinityConfig.clientIP", means: "{timeoutSeconds: 10800}", by: written},
		{path: "spec.sessionAffinityConfig.clientIP.timeoutSeconds", means: "10800", by: written},
		{path: "spec.selector", means: unread},
		{path: "spec.ports", means: none},
		{path: "spec.ports.0.name", means: none},
		{path: "spec.ports.0.protocol", means: "TCP", by: written},
		{path: "spec.ports.0.appProtocol", means: unread},
		{path: "spec.ports.0.port", means: none},
		{path: "spec.ports.0.targetPort", means: unread},
		{path: "spec.ports.0.nodePort", means: none},
		{path: "status.loadBalancer", means: none},
		{path: "status.loadBalancer.ingress", means: none},
		{path: "status.loadBalancer.ingress.0.ip", means: none},
		{path: "status.loadBalancer.ingress.0.ipMode", means: "VIP", by: written, other: "Proxy"},
		{path: "status.loadBalancer.ingress.0.hostname", means: unread},
		{path: "status.loadBalancer.ingress.0.ports", means: unread},
		{path: "status.conditions", means: unread},
	}
}

const absentSlice = `
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-1, namespace: default, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
endpoints:
  - addresses: [10.180.0.1]
    conditions: {ready: false, serving: false, terminating: true}
    hostname: web-1
    nodeName: node-1
    zone: zone-a
    targetRef: {kind: Pod, name: web-1}
    deprecatedTopology: {rack: "7"}
    hints: {forZones: [{name: zone-a}], forNodes: [{name: node-1}]}
ports: [{name: http, protocol: UDP, appProtocol: http, port: 8080}]
`

// fieldsOfSlice are all fields.
func fieldsOfSlice() []field {
	return []field{
		{path: "addressType", means: none},
		{path: "endpoints", means: none},
		{path: "endpoints.0.addresses", means: none},
		{path: "endpoints.0.conditions", means: "{ready: true, serving: true, terminating: false}", by: documented},
		{path: "endpoints.0.conditions.ready", means: "true", by: documented},
		{path: "endpoints.0.conditions.serving", means: "true", by: documented},
		{path: "endpoints.0.conditions.terminating", means: "false", by: documented},
		{path: "endpoints.0.hostname", means: unread},
		{path: "endpoints.0.nodeName", means: none},
		{path: "endpoints.0.zone", means: unread},
		{path: "endpoints.0.targetRef", means: unread},
		{path: "endpoints.0.deprecatedTopology", means: unread},
		{path: "endpoints.0.hints", means: none},
		{path: "endpoints.0.hints.forZones", means: none},
		{path: "endpoints.0.hints.forZones.0.name", means: none},
		{path: "endpoints.0.hints.forNodes", means: none},
		{path: "endpoints.0.hints.forNodes.0.name", means: none},
		{path: "ports", means: none},
		{path: "ports.0.name", means: `""`, by: written},
		{path: "ports.0.protocol", means: "TCP", by: written},
		{path: "ports.0.appProtocol", means: unread},
		// Kubernetes lets each consumer say what that means.
		{path: "ports.0.port", means: none},
	}
}

// object is an object as JSON has it.
type object map[string]any

func parseObject(t testing.TB, text string) object {
	t.Helper()
	var o object
	if err := yaml.Unmarshal([]byte(text), &o); err != nil {
		t.Fatal(err)
	}
	return o
}

// at returns what holds the last word of the path, and that word; nil if it is not there.
func (o object) at(path string) (map[string]any, string) {
	var here any = map[string]any(o)
	words := strings.Split(path, ".")
	for _, word := range words[:len(words)-1] {
		switch within := here.(type) {
		case map[string]any:
			here = within[word]
		case []any:
			i, _ := strconv.Atoi(word)
			here = within[i]
		}
	}
	holder, _ := here.(map[string]any)
	return holder, words[len(words)-1]
}

func (o object) without(path string) object {
	o = runtime.DeepCopyJSON(o)
	if holder, word := o.at(path); holder != nil {
		delete(holder, word)
	}
	return o
}

func (o object) with(t testing.TB, path, value string) object {
	t.Helper()
	o = runtime.DeepCopyJSON(o)
	holder, word := o.at(path)
	var v any
	if err := yaml.Unmarshal([]byte(value), &v); err != nil || holder == nil {
		t.Fatalf("%s: %s: %v", path, value, err)
	}
	if n, is := v.(float64); is {
		v = int64(n)
	}
	holder[word] = v
	return o
}

// typed returns the object of the API.
func (o object) typed(t testing.TB) runtime.Object {
	t.Helper()
	var typed runtime.Object = &corev1.Service{}
	if o["kind"] == "EndpointSlice" {
		typed = &discoveryv1.EndpointSlice{}
	}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o, typed); err != nil {
		t.Fatal(err)
	}
	return typed
}

// meaning is all that an object means to the proxy, as text.
func meaning(o runtime.Object) string {
	var b strings.Builder
	var problems []Problem
	switch o := o.(type) {
	case *corev1.Service:
		c := convertService(o)
		problems = c.problems
		if c.bare != nil {
			c.bare.Created = time.Time{}
			fmt.Fprintln(&b, c.bare)
		}
	case *discoveryv1.EndpointSlice:
		c := convertSlice(o)
		problems = c.problems
		fmt.Fprintf(&b, "of %s, %v\n", c.owner, c.family)
		for _, p := range c.ports {
			fmt.Fprintf(&b, "port %v %d\n", p.key, p.number)
		}
		for e := range c.endpoints.All() {
			fmt.Fprintf(&b, "endpoint %+v\n", e)
		}
	}
	for _, p := range problems {
		fmt.Fprintf(&b, "%s: %v\n", p.Field, p.Err)
	}
	return b.String()
}

// TestAbsentFields: an absent field means what the API server would fill in, or what the field's documentation says.
// Every field of the API is listed, with what the proxy makes of it.
func TestAbsentFields(t *testing.T) {
	for text, fields := range map[string][]field{absentService: fieldsOfService(), absentSlice: fieldsOfSlice()} {
		base := parseObject(t, text)
		checkAllListed(t, reflect.TypeOf(base.typed(t)).Elem(), "", fields)
		for _, f := range fields {
			t.Run(base["kind"].(string)+"/"+f.path, func(t *testing.T) { checkAbsent(t, base, f) })
		}
	}
}

func checkAbsent(t *testing.T, base object, f field) {
	has, absent := meaning(base.typed(t)), meaning(base.without(f.path).typed(t))
	switch f.means {
	case unread:
		if absent != has {
			t.Errorf("it is read: without it\n%s\nwith it\n%s", absent, has)
		}
		for seed := range int64(20) {
			o := base.typed(t)
			v := reflect.ValueOf(o).Elem()
			for word := range strings.SplitSeq(f.path, ".") {
				v = within(v, word)
			}
			randfill.NewWithSeed(seed).NilChance(0.2).Fill(v.Addr().Interface())
			if got := meaning(o); got != has {
				t.Errorf("it is read: with a random value\n%s\nwith its own\n%s", got, has)
			}
		}
	case none:
		if absent == has {
			t.Errorf("it is not read: with it and without it\n%s", has)
		}
	default:
		if given := meaning(base.with(t, f.path, f.means).typed(t)); absent != given {
			t.Errorf("absent it means\n%s\nwant, as with %s,\n%s", absent, f.means, given)
		}
		if f.other != "" {
			has = meaning(base.with(t, f.path, f.other).typed(t))
		}
		if absent == has {
			t.Errorf("it is not read: with another value and without it\n%s", has)
		}
	}
}

// within returns a field, by its name in JSON, or the first item of a list.
func within(v reflect.Value, word string) reflect.Value {
	if v.Kind() == reflect.Pointer {
		v = v.Elem()
	}
	if v.Kind() == reflect.Slice {
		return v.Index(0)
	}
	for i := range v.NumField() {
		if jsonName(v.Type().Field(i)) == word {
			return v.Field(i)
		}
	}
	return reflect.Value{}
}

func jsonName(f reflect.StructField) string {
	name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
	return name
}

// checkAllListed checks that each field of a type is listed, and below those that are read, each of theirs.
func checkAllListed(t *testing.T, of reflect.Type, path string, fields []field) {
	for of.Kind() == reflect.Pointer || of.Kind() == reflect.Slice {
		if of.Kind() == reflect.Slice {
			path += "0."
		}
		of = of.Elem()
	}
	if of.Kind() != reflect.Struct {
		return
	}
	for i := range of.NumField() {
		name := jsonName(of.Field(i))
		if name == "" || name == "metadata" {
			continue // the type of the object, and what package wire keeps of its metadata
		}
		at := slices.IndexFunc(fields, func(f field) bool { return f.path == path+name })
		switch {
		case at < 0 && path+name != "spec" && path+name != "status":
			t.Errorf("%s%s is not listed", path, name)
		case at >= 0 && fields[at].means == unread:
		default:
			checkAllListed(t, of.Field(i).Type, path+name+".", fields)
		}
	}
}

// TestAbsentFieldsOnAPIServers: the API server fills in what fieldsOfService and fieldsOfSlice say; and whether or not
// it does so in its lists and its watches, the objects mean the same, whichever of their fields are absent in etcd.
//
// By make test-skew it runs on API servers of several releases.
func TestAbsentFieldsOnAPIServers(t *testing.T) {
	controlplane.Require(t)
	releases := controlplane.Skew()
	if len(releases) == 0 {
		releases = []string{controlplane.Newest}
	}
	for _, release := range releases {
		t.Run(release, func(t *testing.T) { testAbsentFields(t, release) })
	}
}

func testAbsentFields(t *testing.T, release string) {
	plane, err := controlplane.StartInNamespace(t.Context(), controlplane.Config{
		ListenAddr: netip.MustParseAddr("172.30.0.1"), Controllers: []string{"service-cidr-controller"},
	}.Release(release))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := plane.Stop(); err != nil {
			t.Error(err)
		}
	})
	version, is, err := plane.IsRelease(release)
	if t.Logf("the API server is %s", version); err != nil || !is {
		t.Fatalf("the API server is %s, want %s; error %v", version, release, err)
	}
	s := &absentServer{T: t, Plane: plane, release: release}
	services, slices := parseObject(t, absentService), parseObject(t, absentSlice)
	for _, f := range fieldsOfService() {
		s.fills(services, f)
	}
	for _, f := range fieldsOfSlice() {
		s.fills(slices, f)
	}
	rng := rand.New(rand.NewSource(1))
	for range 60 {
		s.meansTheSame(withoutSome(rng, services, fieldsOfService()))
		// Releases before 1.33 do not know forNodes.
		s.meansTheSame(withoutSome(rng, slices, fieldsOfSlice()).without("endpoints.0.hints.forNodes"))
	}
}

// withoutSome leaves out random fields of those that mean something when they are absent.
func withoutSome(rng *rand.Rand, o object, fields []field) object {
	for _, f := range fields {
		if f.by != "" && rng.Intn(2) == 0 {
			o = o.without(f.path)
		}
	}
	return o
}

// absentServer is an API server to whose etcd objects are written as they are.
type absentServer struct {
	*testing.T
	*controlplane.Plane
	release string
	stored  int
}

// store writes an object and returns what the API server sends of it by a watch and when it is asked.
func (s *absentServer) store(o object) (watched, got runtime.Object) {
	s.Helper()
	if o["kind"] == "EndpointSlice" {
		api := s.Client.DiscoveryV1().EndpointSlices("default")
		return storeAndAsk(s, o, api.Watch, api.Get)
	}
	api := s.Client.CoreV1().Services("default")
	return storeAndAsk(s, o, api.Watch, api.Get)
}

func storeAndAsk[O runtime.Object](s *absentServer, o object,
	watch func(context.Context, metav1.ListOptions) (apiwatch.Interface, error),
	get func(context.Context, string, metav1.GetOptions) (O, error)) (watched, got runtime.Object) {
	s.Helper()
	// It tells the object's event from those of earlier objects of the name.
	s.stored++
	mark := strconv.Itoa(s.stored)
	o = o.with(s, "metadata.annotations", "{mark: '"+mark+"'}")
	text, err := yaml.Marshal(o)
	if err != nil {
		s.Fatal(err)
	}
	name := o["metadata"].(map[string]any)["name"].(string)
	w, err := watch(s.Context(), metav1.ListOptions{FieldSelector: "metadata.name=" + name})
	if err != nil {
		s.Fatal(err)
	}
	defer w.Stop()
	if err := s.Cluster.Store(s.Context(), string(text)); err != nil {
		s.Fatal(err)
	}
	for watched == nil {
		event, more := <-w.ResultChan()
		if !more {
			s.Fatal("the watch has ended without the object")
		}
		if m, is := event.Object.(metav1.Object); is && m.GetAnnotations()["mark"] == mark {
			watched = event.Object
		}
	}
	if got, err = get(s.Context(), name, metav1.GetOptions{}); err != nil {
		s.Fatal(err)
	}
	return watched, got
}

// fills checks what the API server fills in where a field is absent.
func (s *absentServer) fills(o object, f field) {
	s.Helper()
	if f.by == "" || s.release == "1.29" && strings.HasSuffix(f.path, ".ipMode") { // behind a gate that is off
		return
	}
	_, got := s.store(o.without(f.path))
	o, err := runtime.DefaultUnstructuredConverter.ToUnstructured(got)
	if err != nil {
		s.Fatal(err)
	}
	holder, word := o.at(f.path)
	value, filled := holder[word]
	switch {
	case f.by != documented:
		var want any
		if err := yaml.Unmarshal([]byte(f.means), &want); err != nil {
			s.Fatal(err)
		}
		if fmt.Sprint(value) != fmt.Sprint(want) {
			s.Errorf("%s: the API server fills in %v, want %v", f.path, value, want)
		}
	case filled && fmt.Sprint(value) != "map[]":
		s.Errorf("%s: the API server fills in %v, want nothing", f.path, value)
	}
}

// meansTheSame checks that an object means the same as it is in etcd, in a watch, and when the API server is asked.
func (s *absentServer) meansTheSame(o object) {
	s.Helper()
	watched, got := s.store(o)
	want := meaning(o.typed(s))
	for from, sent := range map[string]runtime.Object{"a watch": watched, "the API server": got} {
		if m := meaning(sent); m != want {
			s.Errorf("%v\nmeans\n%s\nbut from %s\n%s", o, want, from, m)
		}
	}
}
