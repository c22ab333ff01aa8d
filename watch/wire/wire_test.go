package wire

import (
	"bufio"
	"bytes"
	"io"
	"math/rand"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/randfill"

	"nftproxy/test/lib/controlplane"
)

const kept = "example.com/kept"

// keptPrefix begins more keys of annotations that are kept.
const keptPrefix = "prefix.example.com/"

// copies are kinds whose conversion is a copy.
func services() Kind[*corev1.Service] { return Services((*corev1.Service).DeepCopy, kept, keptPrefix) }

func endpointSlices() Kind[*discoveryv1.EndpointSlice] {
	return EndpointSlices((*discoveryv1.EndpointSlice).DeepCopy, kept, keptPrefix)
}

// readFields returns a copy of an object with the fields that the package reads.
func readFields[O Object](o O) O {
	switch o := any(o).(type) {
	case *corev1.Service:
		return any(&corev1.Service{ObjectMeta: readMetadata(&o.ObjectMeta), Spec: o.Spec, Status: o.Status}).(O)
	case *discoveryv1.EndpointSlice:
		s := &discoveryv1.EndpointSlice{ObjectMeta: readMetadata(&o.ObjectMeta), AddressType: o.AddressType, Ports: o.Ports}
		for _, e := range o.Endpoints {
			s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{Addresses: e.Addresses, Conditions: e.Conditions,
				NodeName: e.NodeName, Hints: e.Hints})
		}
		return any(s).(O)
	}
	panic("neither a Service nor an EndpointSlice")
}

func readMetadata(m *metav1.ObjectMeta) metav1.ObjectMeta {
	some := metav1.ObjectMeta{Name: m.Name, Namespace: m.Namespace, UID: m.UID, ResourceVersion: m.ResourceVersion,
		CreationTimestamp: m.CreationTimestamp}
	if v, found := m.Labels[kept]; found {
		some.Labels = map[string]string{kept: v}
	}
	for k, v := range m.Annotations {
		if k != kept && !strings.HasPrefix(k, keptPrefix) {
			continue
		}
		if some.Annotations == nil {
			some.Annotations = map[string]string{}
		}
		some.Annotations[k] = v
	}
	return some
}

// encode returns an object as an API server sends it.
func encode(t testing.TB, object runtime.Object, version schema.GroupVersion) []byte {
	t.Helper()
	message, err := controlplane.Encode(object, version)
	if err != nil {
		t.Fatal(err)
	}
	return message
}

func diff(want, got any) string { return cmp.Diff(want, got, cmpopts.EquateEmpty()) }

// filler makes random objects with all kinds of fields.
func filler(seed int64) *randfill.Filler {
	return randfill.New().RandSource(rand.NewSource(seed)).NilChance(0.3).NumElements(0, 4).Funcs(
		func(t *metav1.Time, c randfill.Continue) { *t = metav1.Unix(int64(c.Uint32()), 0) },
		func(m *metav1.ObjectMeta, c randfill.Continue) {
			c.FillNoCustom(m)
			if c.Bool() {
				m.Labels = map[string]string{kept: c.String(8), "other": c.String(8)}
			}
			if c.Bool() {
				m.Annotations = map[string]string{"other": c.String(8), kept: c.String(8), keptPrefix + c.String(8): c.String(8),
					keptPrefix + "other": c.String(8)}
			}
		},
		// What the API types allow here cannot be sent as protobuf.
		func(f *metav1.FieldsV1, c randfill.Continue) { f.SetRawString(c.String(30)) },
	)
}

// TestLists: of random lists the package reads what client-go's decoder reads, field by field, however few bytes
// arrive at a time.
func TestLists(t *testing.T) {
	for seed := range int64(200) {
		f := filler(seed)
		svcs, slices := &corev1.ServiceList{}, &discoveryv1.EndpointSliceList{}
		f.Fill(svcs)
		f.Fill(slices)
		testList(t, services(), svcs, func(l *corev1.ServiceList) []corev1.Service { return l.Items })
		testList(t, endpointSlices(), slices, func(l *discoveryv1.EndpointSliceList) []discoveryv1.EndpointSlice {
			return l.Items
		})
	}
}

func testList[T any, L metav1.ListInterface, O interface {
	*T
	Object
}](t *testing.T, kind Kind[O], list L, items func(L) []T) {
	t.Helper()
	message := encode(t, any(list).(runtime.Object), kind.gvk.GroupVersion())
	decoded, err := runtime.Decode(scheme.Codecs.UniversalDeserializer(), message)
	if err != nil {
		t.Fatal(err)
	}
	want := &List[O]{Version: list.GetResourceVersion()}
	all := items(decoded.(L))
	for i := range all {
		want.Items = append(want.Items, readFields(O(&all[i])))
	}
	got, err := kind.ReadList(bufio.NewReader(iotest.HalfReader(bytes.NewReader(message))))
	if err != nil {
		t.Fatal(err)
	}
	if d := diff(want, got); d != "" {
		t.Fatalf("(-client-go +wire):\n%s", d)
	}
}

// TestScheme: of a group that it has, the scheme has every kind that client-go has: a manifest with another kind is a
// mistake.
func TestScheme(t *testing.T) {
	ours, found := Scheme(), 0
	for gvk := range scheme.Scheme.AllKnownTypes() {
		if !ours.IsGroupRegistered(gvk.Group) {
			continue
		}
		if found++; len(ours.VersionsForGroupKind(gvk.GroupKind())) == 0 {
			t.Errorf("%s is missing", gvk)
		}
	}
	if found < 100 {
		t.Errorf("%d kinds were compared", found)
	}
}

// TestListCut: a list that ends early is an error at every byte, so that no node takes a part of it for all of it.
func TestListCut(t *testing.T) {
	list := &discoveryv1.EndpointSliceList{ListMeta: metav1.ListMeta{ResourceVersion: "5"}}
	filler(1).NumElements(3, 3).NilChance(0).Fill(&list.Items)
	message := encode(t, list, discoveryv1.SchemeGroupVersion)
	envelope := len(message)
	for n := range envelope {
		got, err := endpointSlices().ReadList(bufio.NewReader(bytes.NewReader(message[:n])))
		if err == nil && len(got.Items) != len(list.Items) {
			t.Fatalf("%d of %d bytes: %d of %d items and no error", n, envelope, len(got.Items), len(list.Items))
		}
		if err == nil && n < envelope-4 { // after the list come two empty fields
			t.Fatalf("%d of %d bytes: no error", n, envelope)
		}
	}
}

// TestListErrors: what is no list of the kind is an error that says so.
func TestListErrors(t *testing.T) {
	other := encode(t, &corev1.ServiceList{}, corev1.SchemeGroupVersion)
	broken := encode(t, &discoveryv1.EndpointSliceList{Items: []discoveryv1.EndpointSlice{{AddressType: "IPv4"}}},
		discoveryv1.SchemeGroupVersion)
	broken = bytes.Replace(broken, []byte("\x22\x04IPv4"), []byte("\x22\x7fIPv4"), 1)
	for _, test := range []struct {
		name, bytes, want string
	}{
		{"another kind", string(other), "want discovery.k8s.io/v1, Kind=EndpointSliceList"},
		{"no protobuf", `{"kind":"List"}`, `it begins with "{\"ki"`},
		{"nothing", "", io.EOF.Error()},
		{"an empty envelope", magic, "the list is not in it"},
		{"a length beyond its message", magic + "\x12\x02\x12\x7f", "field 2 has 127 bytes, and its message only 0"},
		{"an object that is cut", string(broken), "decode item 0"},
		{"a number without an end", magic + "\x12" + strings.Repeat("\xff", 20), "more than 64 bits"},
		{"a group", magic + "\x12\x02\x13\x00", "has the type 3"},
	} {
		_, err := endpointSlices().ReadList(bufio.NewReader(strings.NewReader(test.bytes)))
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: error %v, want %q", test.name, err, test.want)
		}
	}
}

// TestScratch: nothing of an object is left in the next one.
func TestScratch(t *testing.T) {
	decode := endpointSlices().newDecode()
	for seed := range int64(300) {
		s := &discoveryv1.EndpointSlice{}
		filler(seed).Fill(s)
		message, err := s.Marshal()
		if err != nil {
			t.Fatal(err)
		}
		got, err := decode(message)
		if err != nil {
			t.Fatal(err)
		}
		again := &discoveryv1.EndpointSlice{}
		if err := again.Unmarshal(message); err != nil {
			t.Fatal(err)
		}
		if d := diff(readFields(again), got); d != "" {
			t.Fatalf("seed %d (-client-go +wire):\n%s", seed, d)
		}
	}
}

// FuzzDecode: of bytes that both decoders take, both read the same. Nothing else may happen than an error.
func FuzzDecode(f *testing.F) {
	for seed := range int64(20) {
		s, svc := &discoveryv1.EndpointSlice{}, &corev1.Service{}
		filler(seed).Fill(s)
		filler(seed).Fill(svc)
		slice, err := s.Marshal()
		if err != nil {
			f.Fatal(err)
		}
		f.Add(true, slice)
		service, err := svc.Marshal()
		if err != nil {
			f.Fatal(err)
		}
		f.Add(false, service)
	}
	f.Fuzz(func(t *testing.T, isSlice bool, message []byte) {
		if isSlice {
			fuzzDecode(t, endpointSlices(), &discoveryv1.EndpointSlice{}, message)
		} else {
			fuzzDecode(t, services(), &corev1.Service{}, message)
		}
	})
}

func fuzzDecode[O interface {
	Object
	Unmarshal([]byte) error
}](t *testing.T, kind Kind[O], other O, message []byte) {
	got, err := kind.newDecode()(message)
	if otherErr := other.Unmarshal(message); err != nil || otherErr != nil {
		return
	}
	if d := diff(readFields(other), got); d != "" {
		t.Errorf("(-client-go +wire):\n%s", d)
	}
	envelope := &runtime.Unknown{TypeMeta: runtime.TypeMeta{APIVersion: kind.gvk.GroupVersion().String(),
		Kind: kind.gvk.Kind + "List"}}
	for range 2 {
		envelope.Raw = append(envelope.Raw, item(message)...)
	}
	whole, err := envelope.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	list, err := kind.ReadList(bufio.NewReader(io.MultiReader(strings.NewReader(magic),
		iotest.OneByteReader(bytes.NewReader(whole)))))
	if err != nil || len(list.Items) != 2 || diff(got, list.Items[1]) != "" {
		t.Errorf("a list of it twice: %v, error %v", list, err)
	}
}
