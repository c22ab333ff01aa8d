package watch

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	strictjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"

	"nftproxy/internal/service"
)

// manifestKey names an object among those of the manifests. The zero value
// stands for one that could not be read far enough to know.
type manifestKey struct {
	kind string
	name service.Name
}

// manifestObject is a *serviceObject, *sliceObject, *nodeObject or *cidrObject of
// a manifest.
type manifestObject struct {
	key   manifestKey
	value any
}

// document is what came of one document of a manifest.
type document struct {
	objects []manifestObject
	// broken are the objects that it should define but that cannot be read.
	broken   []manifestKey
	problems []Problem
}

func (d *document) fail(key manifestKey, field string, err error) {
	d.broken = append(d.broken, key)
	d.note(key, field, err)
}

func (d *document) note(key manifestKey, field string, err error) {
	namespace, name := key.name.Split()
	d.problems = append(d.problems, Problem{Object: Object{Kind: key.kind, Namespace: namespace, Name: name}, Field: field, Err: err})
}

// chunk is the text of one document of a file.
type chunk struct {
	// line is the number of its first line in the file, from 1.
	line int
	text []byte
}

// split cuts a file into its documents: at YAML's separator lines and, where
// a piece is JSON, after each value. Pieces without contents are left out.
func split(file []byte) []chunk {
	var list []chunk
	add := func(line int, text []byte) {
		text = bytes.TrimRight(text, " \t\r\n")
		blank := text[:len(text)-len(bytes.TrimLeft(text, " \t\r\n"))]
		blank = blank[:bytes.LastIndexByte(blank, '\n')+1] // The first line's indentation means something.
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
		if text := bytes.TrimRight(file[at:end], " \t\r\n"); separator(text) {
			add(startLine, file[start:at])
			start, startLine = at+3, line // What follows on the same line belongs to it.
		}
		at = end
	}
	add(startLine, file[start:])
	return list
}

func separator(line []byte) bool {
	return (bytes.HasPrefix(line, []byte("---")) || bytes.HasPrefix(line, []byte("..."))) &&
		(len(line) == 3 || line[3] == ' ' || line[3] == '\t')
}

// splitJSON cuts a piece that starts like JSON into its values. Where it stops
// being JSON the rest is one piece.
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

// read turns the text into objects. It decodes strictly, says what is unknown
// or there twice, and then makes do with what there is.
func (c chunk) read() document {
	var d document
	if bytes.HasPrefix(c.text, []byte("{")) && json.Valid(c.text) { // YAML minds tabs.
		d.decode(c.text, "")
		return d
	}
	data, err := yaml.YAMLToJSONStrict(c.text)
	if err != nil {
		// Duplicate keys are the one thing that only the strict reading minds.
		lenient, hard := yaml.YAMLToJSON(c.text)
		if hard != nil {
			d.fail(c.guess(), "", c.syntaxError())
			return d
		}
		data = lenient
		d.note(c.guess(), "", c.syntaxError())
	}
	if !bytes.Equal(data, []byte("null")) {
		d.decode(data, "")
	}
	return d
}

// syntaxError parses again with as many empty lines in front as there are in
// the file, so that the parser's line numbers are the file's.
func (c chunk) syntaxError() error {
	_, err := yaml.YAMLToJSONStrict(append(bytes.Repeat([]byte("\n"), c.line-1), c.text...))
	if err == nil {
		return errors.New("not YAML")
	}
	text := strings.TrimPrefix(err.Error(), "error converting YAML to JSON: ")
	return errors.New(strings.Join(strings.Fields(text), " "))
}

// guess says by a look at the text which object a document that does not parse
// is meant to be. It knows it only where kind and name each stand there once
// and where one would write them.
func (c chunk) guess() manifestKey {
	one := func(pattern string) string {
		found := regexp.MustCompile(pattern).FindAllSubmatch(c.text, 2)
		if len(found) != 1 {
			return ""
		}
		return string(found[0][1])
	}
	kind, name := one(`(?m)^kind:[ \t]*"?(\w+)"?[ \t\r]*$`), one(`(?m)^  name:[ \t]*"?([-.\w]+)"?[ \t\r]*$`)
	if kind == "" || name == "" || strings.HasSuffix(kind, "List") {
		return manifestKey{}
	}
	namespace := one(`(?m)^  namespace:[ \t]*"?([-.\w]+)"?[ \t\r]*$`)
	return keyOf(kind, namespace, name)
}

func keyOf(kind, namespace, name string) manifestKey {
	switch {
	case kind == "Node" || kind == "ServiceCIDR":
		namespace = ""
	case namespace == "":
		namespace = metav1.NamespaceDefault
	}
	return manifestKey{kind, service.NewName(namespace, name)}
}

// header is what all kinds have in common.
type header struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Metadata   struct {
		Namespace string `json:"namespace"`
		Name      string `json:"name"`
	} `json:"metadata"`
	Items []json.RawMessage `json:"items"`
}

// decode reads one object, or a list of them; itemKind is the kind of the
// items of a typed list, which need not say it themselves.
func (d *document) decode(data []byte, itemKind string) {
	var h header
	if err := json.Unmarshal(data, &h); err != nil {
		field, err := typeError(err)
		d.fail(manifestKey{}, field, err)
		return
	}
	if h.Kind == "" {
		h.Kind = itemKind
	}
	key := keyOf(h.Kind, h.Metadata.Namespace, h.Metadata.Name)
	switch h.Kind {
	case "List", "ServiceList", "EndpointSliceList", "NodeList", "ServiceCIDRList":
		for i, data := range h.Items {
			n := len(d.problems)
			d.decode(data, strings.TrimSuffix(h.Kind, "List"))
			for j := range d.problems[n:] {
				p := &d.problems[n+j]
				p.Field = strings.TrimSuffix(item("items", i)+"."+p.Field, ".")
			}
		}
		return
	case "Service", "EndpointSlice", "Node", "ServiceCIDR":
	case "":
		d.fail(manifestKey{}, "kind", errors.New("missing"))
		return
	default:
		d.note(key, "", ErrIgnoredKind)
		return
	}
	if want := apiVersion(h.Kind); h.APIVersion != want && (h.APIVersion != "" || itemKind == "") {
		d.fail(key, "apiVersion", &ValueError{Value: h.APIVersion, Reason: "want " + want})
		return
	}
	if h.Metadata.Name == "" {
		d.fail(manifestKey{}, "metadata.name", errors.New("missing"))
		return
	}
	for _, f := range [][2]string{{"metadata.name", h.Metadata.Name}, {"metadata.namespace", h.Metadata.Namespace}} {
		if err := checkName(f[1]); err != nil {
			d.broken = append(d.broken, manifestKey{}) // It is not what it says it is.
			d.note(key, f[0], err)
			return
		}
	}
	d.object(key, data)
}

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
func (d *document) object(key manifestKey, data []byte) {
	namespace, _ := key.name.Split()
	switch key.kind {
	case "Service":
		var s corev1.Service
		if !d.unmarshal(key, data, &s) {
			return
		}
		s.Namespace = namespace
		if err := fillService(&s); err != nil {
			d.fail(key, "spec.clusterIP", err)
			return
		}
		d.objects = append(d.objects, manifestObject{key, convertService(&s)})
	case "EndpointSlice":
		var s discoveryv1.EndpointSlice
		if d.unmarshal(key, data, &s) {
			s.Namespace = namespace
			d.objects = append(d.objects, manifestObject{key, convertSlice(&s)})
		}
	case "Node":
		var n corev1.Node
		if d.unmarshal(key, data, &n) {
			n.Namespace = ""
			d.objects = append(d.objects, manifestObject{key, convertNode(&n)})
		}
	case "ServiceCIDR":
		var c networkingv1.ServiceCIDR
		if d.unmarshal(key, data, &c) {
			c.Namespace = ""
			d.objects = append(d.objects, manifestObject{key, convertCIDR(&c)})
		}
	}
}

// unmarshal decodes data; false means that it does not fit the kind.
func (d *document) unmarshal(key manifestKey, data []byte, into any) bool {
	strict, err := strictjson.UnmarshalStrict(data, into)
	if err != nil {
		// The standard library's error says the field in a form of its own.
		if e := json.Unmarshal(data, into); e != nil {
			err = e
		}
		field, err := typeError(err)
		d.fail(key, field, err)
		return false
	}
	for _, err := range strict {
		field := ""
		if f, ok := err.(strictjson.FieldError); ok {
			field = f.FieldPath()
		}
		reason, _, _ := strings.Cut(err.Error(), " \"")
		d.note(key, field, errors.New(reason))
	}
	return true
}

// typeError finds the field in an error of encoding/json.
func typeError(err error) (field string, _ error) {
	if e := (*json.UnmarshalTypeError)(nil); errors.As(err, &e) {
		return e.Field, fmt.Errorf("%s instead of %s", e.Value, jsonType(e.Type.Kind().String()))
	}
	return "", err
}

// jsonType says a Go kind in the words of who writes manifests.
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

// fillService gives a Service what the API server would have: families and
// the two forms of its addresses. It cannot allocate one.
func fillService(s *corev1.Service) error {
	spec := &s.Spec
	switch {
	case spec.ClusterIP == "" && len(spec.ClusterIPs) > 0:
		spec.ClusterIP = spec.ClusterIPs[0]
	case spec.ClusterIP != "" && len(spec.ClusterIPs) == 0:
		spec.ClusterIPs = []string{spec.ClusterIP}
	}
	if _, otherProxy := s.Labels[labelProxyName]; spec.ClusterIP == "" && spec.Type != corev1.ServiceTypeExternalName && !otherProxy {
		return errors.New("missing: no API server allocates one for a manifest")
	}
	if len(spec.IPFamilies) > 0 {
		return nil
	}
	for _, text := range spec.ClusterIPs {
		f := corev1.IPv4Protocol
		if strings.Contains(text, ":") {
			f = corev1.IPv6Protocol
		}
		if !slices.Contains(spec.IPFamilies, f) {
			spec.IPFamilies = append(spec.IPFamilies, f)
		}
	}
	return nil
}
