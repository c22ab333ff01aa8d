package watch

import (
	"context"
	"fmt"
	"math/rand"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/tools/txtar"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	apiwatch "k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/randfill"
	"sigs.k8s.io/yaml"

	"nftproxy/test/lib/controlplane"
)

// field is a line of testdata/absent-fields.txt, which says what its columns are.
type field struct {
	path, means string
	by          filler
	other       string
}

const (
	none   = "none"
	unread = "unread"
)

// filler says who gives an absent field its meaning.
type filler string

const (
	inDefaults filler = "defaults"
	onRead     filler = "defaults on read"
	documented filler = "documentation"
)

// fieldsOf is an object with all fields of its kind, and what each means.
type fieldsOf struct {
	object object
	fields []field
}

// absentFields reads testdata/absent-fields.txt.
func absentFields(t testing.TB) (ofService, ofSlice fieldsOf) {
	t.Helper()
	archive, err := txtar.ParseFile("testdata/absent-fields.txt")
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{}
	for _, f := range archive.Files {
		files[f.Name] = string(f.Data)
	}
	parse := func(kind string) fieldsOf {
		of := fieldsOf{object: parseObject(t, files[kind+".yaml"])}
		for line := range strings.Lines(files[kind+".fields"]) {
			columns := strings.Split(line, "|")
			if strings.HasPrefix(line, "#") {
				continue
			}
			for len(columns) < 4 {
				columns = append(columns, "")
			}
			for i := range columns {
				columns[i] = strings.TrimSpace(columns[i])
			}
			f := field{path: columns[0], means: columns[1], by: filler(columns[2]), other: columns[3]}
			if by := []filler{"", inDefaults, onRead, documented}; !slices.Contains(by, f.by) {
				t.Fatalf("%s.fields: %s: nobody is %q", kind, f.path, f.by)
			}
			of.fields = append(of.fields, f)
		}
		return of
	}
	return parse("service"), parse("slice")
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
	service, slice := absentFields(t)
	for _, of := range []fieldsOf{service, slice} {
		checkAllListed(t, reflect.TypeOf(of.object.typed(t)).Elem(), "", of.fields)
		for _, f := range of.fields {
			t.Run(of.object["kind"].(string)+"/"+f.path, func(t *testing.T) { checkAbsent(t, of.object, f) })
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

// TestAbsentFieldsOnAPIServers: the API server fills in what absentFields says; and whether or not
// it does so in its lists and its watches, the objects mean the same, whichever of their fields are absent in etcd.
//
// By make test-skew it runs on API servers of several releases.
func TestAbsentFieldsOnAPIServers(t *testing.T) {
	onEachRelease(t, func(t *testing.T, plane *controlplane.Plane, release string) {
		s := &absentServer{T: t, Plane: plane, release: release}
		service, slice := absentFields(t)
		for _, of := range []fieldsOf{service, slice} {
			for _, f := range of.fields {
				s.fills(of.object, f)
			}
		}
		rng := rand.New(rand.NewSource(1))
		for range 60 {
			s.meansTheSame(service.withoutSome(rng))
			// Releases before 1.33 do not know forNodes.
			s.meansTheSame(slice.withoutSome(rng).without("endpoints.0.hints.forNodes"))
		}
	})
}

// withoutSome leaves out random fields of those that mean something when they are absent.
func (of fieldsOf) withoutSome(rng *rand.Rand) object {
	o := of.object
	for _, f := range of.fields {
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
