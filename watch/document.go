package watch

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf16"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	strictjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"
)

// manifestObject is a *serviceObject, *sliceObject, *nodeObject or *cidrObject of
// a manifest.
type manifestObject struct {
	key   Object
	value converted
	// source is the file, the document and its line.
	source string
}

// document is what one document of a manifest contains.
type document struct {
	objects []manifestObject
	// broken names the objects in it that cannot be read. The zero value stands for one whose kind or name could not be
	// read either.
	broken   []Object
	problems []Problem
}

func (d *document) addBroken(key Object, field string, err error) {
	d.broken = append(d.broken, key)
	d.addProblem(key, field, err)
}

func (d *document) addProblem(key Object, field string, err error) {
	d.problems = append(d.problems, Problem{Object: key, Field: field, Err: err})
}

// chunk is the text of one document of a file.
type chunk struct {
	// line is the number of its first line in the file, from 1.
	line int
	text []byte
}

// inUTF8 returns the text of a file that begins with a mark of UTF-16, as some editors write it, in UTF-8: a document
// begins at bytes.
func inUTF8(file []byte) []byte {
	var order binary.ByteOrder
	switch {
	case bytes.HasPrefix(file, []byte{0xff, 0xfe}):
		order = binary.LittleEndian
	case bytes.HasPrefix(file, []byte{0xfe, 0xff}):
		order = binary.BigEndian
	default:
		return file
	}
	var units []uint16
	for at := 2; at+1 < len(file); at += 2 {
		units = append(units, order.Uint16(file[at:]))
	}
	return []byte(string(utf16.Decode(units)))
}

// splitDocuments cuts a file into its documents: at YAML's separator lines and, where
// a piece is JSON, after each value. It leaves out empty pieces.
func splitDocuments(file []byte) []chunk {
	var list []chunk
	add := func(line int, text []byte) {
		text = bytes.TrimRight(text, " \t\r\n")
		blank := text[:len(text)-len(bytes.TrimLeft(text, " \t\r\n"))]
		blank = blank[:bytes.LastIndexByte(blank, '\n')+1] // The first line keeps its indentation, which YAML needs.
		if len(text) > 0 {
			list = append(list, splitJSON(chunk{line + bytes.Count(blank, []byte("\n")), text[len(blank):]})...)
		}
	}
	start, startLine, line := 0, 1, 0
	for at := 0; at < len(file); {
		line++
		end := len(file)
		if n := bytes.IndexByte(file[at:], '\n'); n >= 0 {
			end = at + n + 1
		}
		if text := bytes.TrimRight(file[at:end], " \t\r\n"); isSeparator(text) {
			add(startLine, file[start:at])
			start, startLine = at+3, line // The rest of the line belongs to the document.
		}
		at = end
	}
	add(startLine, file[start:])
	return list
}

func isSeparator(line []byte) bool {
	return (bytes.HasPrefix(line, []byte("---")) || bytes.HasPrefix(line, []byte("..."))) &&
		(len(line) == 3 || line[3] == ' ' || line[3] == '\t')
}

// splitJSON cuts a piece that starts like JSON into its values. From the first text
// that is not JSON on, the rest is one piece.
func splitJSON(c chunk) []chunk {
	rest := bytes.TrimLeft(c.text, " \t\r\n\ufeff")
	if len(rest) == 0 || rest[0] != '{' {
		return []chunk{c}
	}
	base := len(c.text) - len(rest)
	decoder := json.NewDecoder(bytes.NewReader(rest))
	var list []chunk
	at := 0
	for decoder.More() {
		var value json.RawMessage
		if decoder.Decode(&value) != nil {
			break
		}
		end := int(decoder.InputOffset())
		start := end - len(value)
		list = append(list, chunk{c.line + bytes.Count(c.text[:base+start], []byte("\n")), rest[start:end]})
		at = end
	}
	if left := bytes.TrimSpace(rest[at:]); len(left) > 0 {
		start := base + at + bytes.Index(rest[at:], left)
		list = append(list, chunk{c.line + bytes.Count(c.text[:start], []byte("\n")), left})
	}
	return list
}

// read turns the text into objects. It reports fields that are unknown or there twice, and still uses the others. The
// scheme is wire.Scheme, which most files do not need.
func (c chunk) read(scheme func() *runtime.Scheme) document {
	var d document
	if bytes.HasPrefix(c.text, []byte("{")) && json.Valid(c.text) { // YAML does not allow its tabs.
		d.decode(c.text, "", scheme)
		return d
	}
	data, err := yaml.YAMLToJSONStrict(c.text)
	if err != nil {
		// Only duplicate keys are errors for the strict reading and not for the other.
		lenient, hard := yaml.YAMLToJSON(c.text)
		if hard != nil {
			d.addBroken(c.guessKey(), "", c.syntaxError())
			return d
		}
		data = lenient
		d.addProblem(c.guessKey(), "", c.syntaxError())
	}
	if !bytes.Equal(data, []byte("null")) {
		d.decode(data, "", scheme)
	}
	return d
}

// syntaxError parses the text again, for an error with the line numbers of the file. The
// parser names no line for the first one, so an empty line comes before it where the file
// has one.
func (c chunk) syntaxError() error {
	before := min(c.line-1, 1)
	_, err := yaml.YAMLToJSONStrict(append(bytes.Repeat([]byte("\n"), before), c.text...))
	if err == nil {
		return errors.New("not YAML")
	}
	text := strings.TrimPrefix(err.Error(), "error converting YAML to JSON: ")
	text = regexp.MustCompile(`(^yaml: |\n *)line \d+:`).ReplaceAllStringFunc(text, func(where string) string {
		start, number, _ := strings.Cut(where, "line ")
		n, _ := strconv.Atoi(strings.TrimSuffix(number, ":"))
		return fmt.Sprintf("%sline %d:", start, n+c.line-1-before)
	})
	return errors.New(strings.Join(strings.Fields(text), " "))
}

// guessKey finds kind and name in the text of a document that does not parse. It
// returns the zero key unless each stands there exactly once, at the usual place.
func (c chunk) guessKey() Object {
	one := func(pattern string) string {
		found := regexp.MustCompile(pattern).FindAllSubmatch(c.text, 2)
		if len(found) != 1 {
			return ""
		}
		return string(found[0][1])
	}
	kind, name := one(`(?m)^kind:[ \t]*"?(\w+)"?[ \t\r]*$`), one(`(?m)^  name:[ \t]*"?([-.\w]+)"?[ \t\r]*$`)
	if kind == "" || name == "" || strings.HasSuffix(kind, "List") {
		return Object{}
	}
	namespace := one(`(?m)^  namespace:[ \t]*"?([-.\w]+)"?[ \t\r]*$`)
	return objectOf(kind, namespace, name)
}

func objectOf(kind, namespace, name string) Object {
	switch {
	case kind == "Node" || kind == "ServiceCIDR":
		namespace = ""
	case namespace == "":
		namespace = metav1.NamespaceDefault
	}
	return Object{Kind: kind, Namespace: namespace, Name: name}
}

// header has the fields that all kinds have.
type header struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Metadata   struct {
		Namespace string `json:"namespace"`
		Name      string `json:"name"`
	} `json:"metadata"`
	Items []json.RawMessage `json:"items"`
}

// read reads the fields, also where some have values of other types: it returns what is lost of a list, and of an
// object what is reported with its other fields.
func (h *header) read(data []byte) (lost []Problem, _ error) {
	if json.Unmarshal(data, h) == nil {
		return nil, nil
	}
	data, err := shaper{func(field string, err error) { lost = append(lost, Problem{Field: field, Err: err}) }}.shape(data,
		reflect.TypeFor[header]())
	if err != nil {
		return nil, err
	}
	*h = header{}
	return lost, json.Unmarshal(data, h)
}

// decode reads one object or a list. itemKind is the kind of the items of a typed
// list, where an item may leave out its own.
func (d *document) decode(data []byte, itemKind string, scheme func() *runtime.Scheme) {
	var h header
	lost, err := h.read(data)
	if err != nil {
		field, err := typeError(err)
		d.addBroken(Object{}, field, err)
		return
	}
	if h.Kind == "" {
		h.Kind = itemKind
	}
	key := objectOf(h.Kind, h.Metadata.Namespace, h.Metadata.Name)
	switch h.Kind {
	case "List", "ServiceList", "EndpointSliceList", "NodeList", "ServiceCIDRList":
		d.problems = append(d.problems, lost...)
		for i, data := range h.Items {
			n := len(d.problems)
			d.decode(data, strings.TrimSuffix(h.Kind, "List"), scheme)
			for j := range d.problems[n:] {
				p := &d.problems[n+j]
				p.Field = strings.TrimSuffix(item("items", i)+"."+p.Field, ".")
			}
		}
		return
	case "Service", "EndpointSlice", "Node", "ServiceCIDR":
	case "":
		d.addBroken(Object{}, "kind", errors.New("missing"))
		return
	default:
		d.ignore(key, h.APIVersion, scheme())
		return
	}
	if want := apiVersion(h.Kind); h.APIVersion != want && (h.APIVersion != "" || itemKind == "") {
		d.addBroken(key, "apiVersion", &ValueError{Value: h.APIVersion, Reason: "want " + want})
		return
	}
	if h.Metadata.Name == "" {
		d.addBroken(Object{}, "metadata.name", errors.New("missing"))
		return
	}
	for _, f := range [][2]string{{"metadata.name", h.Metadata.Name}, {"metadata.namespace", h.Metadata.Namespace}} {
		if err := checkName(f[1]); err != nil {
			d.broken = append(d.broken, Object{}) // The bad name may stand for any object.
			d.addProblem(key, f[0], err)
			return
		}
	}
	d.object(key, data)
}

// ignore reports an object of another kind. One that Kubernetes does not have, in a group that nftproxy reads, is a
// mistake.
func (d *document) ignore(key Object, apiVersion string, scheme *runtime.Scheme) {
	version, _ := schema.ParseGroupVersion(apiVersion)
	kind := schema.GroupKind{Group: version.Group, Kind: key.Kind}
	if scheme.IsGroupRegistered(kind.Group) && len(scheme.VersionsForGroupKind(kind)) == 0 {
		d.addBroken(key, "kind", &ValueError{Value: key.Kind, Reason: "no such kind in apiVersion " +
			strconv.Quote(apiVersion)})
		return
	}
	d.addProblem(key, "", ErrIgnoredKind)
}

// apiVersion is that of the objects of a kind.
func apiVersion(kind string) string {
	switch kind {
	case "EndpointSlice":
		return discoveryv1.SchemeGroupVersion.String()
	case "ServiceCIDR":
		return networkingv1.SchemeGroupVersion.String()
	}
	return corev1.SchemeGroupVersion.String()
}

// object decodes and converts one object of a known kind.
func (d *document) object(key Object, data []byte) {
	report := func(field string, err error) { d.addProblem(key, field, err) }
	before := len(d.problems)
	add := func(value converted) {
		value.meta().keepText(slices.Clone(d.problems[before:]))
		d.objects = append(d.objects, manifestObject{key: key, value: value})
	}
	switch key.Kind {
	case "Service":
		s := &corev1.Service{}
		if !d.unmarshal(key, data, s) {
			return
		}
		spell(serviceWords(s), report)
		misfits(s, report)
		if slices.ContainsFunc(s.Spec.IPFamilies, func(f corev1.IPFamily) bool {
			return f != corev1.IPv4Protocol && f != corev1.IPv6Protocol
		}) {
			s.Spec.IPFamilies = nil // The addresses say it.
		}
		if err := fillService(s); err != nil {
			d.addBroken(key, "spec.clusterIP", err)
			return
		}
		add(convertService(s))
	case "EndpointSlice":
		if s := (&discoveryv1.EndpointSlice{}); d.unmarshal(key, data, s) {
			spell(sliceWords(s), report)
			add(convertSlice(s))
		}
	case "Node":
		if n := (&corev1.Node{}); d.unmarshal(key, data, n) {
			spell(nodeWords(n), report)
			add(convertNode(n))
		}
	case "ServiceCIDR":
		if c := (&networkingv1.ServiceCIDR{}); d.unmarshal(key, data, c) {
			add(convertCIDR(c))
		}
	}
}

// unmarshal decodes data, and sets the namespace of the key. It returns false where data does not fit the kind.
func (d *document) unmarshal(key Object, data []byte, into metav1.Object) bool {
	report := func(field string, err error) { d.addProblem(key, field, err) }
	strict, err := strictjson.UnmarshalStrict(data, into)
	if err != nil {
		object := reflect.ValueOf(into).Elem()
		if data, err = (shaper{report}).shape(data, object.Type()); err == nil {
			object.SetZero() // The decoder has filled a part of it.
			strict, err = strictjson.UnmarshalStrict(data, into)
		}
	}
	if err != nil {
		field, err := typeError(err)
		d.addBroken(key, field, err)
		return false
	}
	for _, err := range strict {
		report(strictField(err))
	}
	into.SetNamespace(key.Namespace)
	return true
}

// typeError finds the field in an error of encoding/json.
func typeError(err error) (field string, _ error) {
	if e := (*json.UnmarshalTypeError)(nil); errors.As(err, &e) {
		return e.Field, fmt.Errorf("%s instead of %s", e.Value, jsonType(e.Type.Kind().String()))
	}
	return "", err
}

// jsonType names a Go kind as JSON does, for people who write manifests.
func jsonType(kind string) string {
	switch {
	case strings.HasPrefix(kind, "int"), strings.HasPrefix(kind, "uint"):
		return "number"
	case kind == "slice":
		return "list"
	case kind == "struct", kind == "map":
		return "object"
	}
	return kind
}

// fillService sets clusterIP from clusterIPs. It cannot allocate an address.
func fillService(s *corev1.Service) error {
	spec := &s.Spec
	if spec.ClusterIP == "" && len(spec.ClusterIPs) > 0 {
		spec.ClusterIP = spec.ClusterIPs[0]
	}
	if _, otherProxy := s.Labels[labelProxyName]; spec.ClusterIP == "" && spec.Type != corev1.ServiceTypeExternalName &&
		!otherProxy {
		return errors.New("missing: no API server allocates one for a manifest")
	}
	return nil
}
