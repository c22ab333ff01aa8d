package watch

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	strictjson "sigs.k8s.io/json"
)

// shaper gives the JSON of a manifest the shape of a type, so that a field with a value of another type takes nothing
// more with it. An API server refuses the whole object.
type shaper struct{ report func(field string, err error) }

// lostError says that a value is left out. Nothing else has to be said of its field: there is nothing in it.
type lostError struct{ error }

// lose reports a value that is left out.
func (s shaper) lose(field string, err error) (fitting any, ok bool) {
	s.report(field, lostError{err})
	return nil, false
}

// shape returns the JSON as far as it fits the type, and reports each part that does not.
func (s shaper) shape(data []byte, of reflect.Type) ([]byte, error) {
	var value any
	twice, err := strictjson.UnmarshalStrict(data, &value)
	if err != nil {
		return nil, err
	}
	for _, err := range twice {
		s.report(strictField(err))
	}
	fitting, ok := s.fit(value, of, "")
	if !ok {
		return nil, fmt.Errorf("%s instead of object", kindOf(value))
	}
	return json.Marshal(fitting)
}

// fit returns the part of a value that fits the type; ok is false if none does. In place of a string another value's
// JSON remains: what reads the text judges it, so that a list of sources that is no list admits nobody.
func (s shaper) fit(value any, of reflect.Type, field string) (fitting any, ok bool) {
	if value == nil {
		return nil, true
	}
	if of.Kind() != reflect.Pointer && reflect.PointerTo(of).Implements(reflect.TypeFor[json.Unmarshaler]()) {
		text, err := json.Marshal(value)
		if err == nil {
			err = json.Unmarshal(text, reflect.New(of).Interface())
		}
		if err != nil {
			_, reason := typeError(err)
			return s.lose(field, reason)
		}
		return value, true
	}
	switch of.Kind() {
	case reflect.Pointer:
		return s.fit(value, of.Elem(), field)
	case reflect.Struct:
		if object, is := value.(map[string]any); is {
			return s.fitStruct(object, of, field), true
		}
	case reflect.Map:
		if object, is := value.(map[string]any); is {
			for _, key := range slices.Sorted(maps.Keys(object)) {
				if object[key], ok = s.fit(object[key], of.Elem(), field+"["+key+"]"); !ok {
					delete(object, key)
				}
			}
			return object, true
		}
	case reflect.Slice:
		return s.fitList(value, of, field)
	case reflect.String:
		if _, is := value.(string); is {
			return value, true
		}
		text, _ := json.Marshal(value) // It was JSON.
		s.report(field, fmt.Errorf("%s instead of string: %s wants quotes", kindOf(value), beginning(string(text))))
		return string(text), true
	case reflect.Bool:
		if _, is := value.(bool); is {
			return value, true
		}
		if text, is := value.(string); is {
			if yes, is := yesOrNo(text); is {
				s.report(field, fmt.Errorf("string instead of bool: %q wants no quotes", text))
				return yes, true
			}
		}
	default:
		n, is := value.(int64)
		if text, quoted := value.(string); quoted {
			if number, err := strconv.ParseInt(text, 10, of.Bits()); err == nil {
				s.report(field, fmt.Errorf("string instead of number: %q wants no quotes", text))
				return number, true
			}
		}
		if is && (of.Kind() != reflect.Int32 || n >= math.MinInt32 && n <= math.MaxInt32) {
			return value, true
		}
		if kindOf(value) == "number" {
			return s.lose(field, fmt.Errorf("%v: want a whole number of %d bits", value, of.Bits()))
		}
	}
	return s.lose(field, fmt.Errorf("%s instead of %s", kindOf(value), jsonType(of.Kind().String())))
}

// yesOrNo reads a word of YAML for a bool.
func yesOrNo(text string) (yes, is bool) {
	switch strings.ToLower(text) {
	case "true", "yes", "on", "y", "1":
		return true, true
	case "false", "no", "off", "n", "0":
		return false, true
	}
	return false, false
}

func (s shaper) fitStruct(object map[string]any, of reflect.Type, field string) map[string]any {
	for i := range of.NumField() {
		f := of.Field(i)
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if name == "" {
			s.fitStruct(object, f.Type, field) // its fields stand among these
			continue
		}
		v, there := object[name]
		if !there {
			continue
		}
		var ok bool
		if object[name], ok = s.fit(v, f.Type, strings.TrimPrefix(field+"."+name, ".")); !ok {
			delete(object, name)
		}
	}
	return object
}

// fitList keeps the places of the items: an empty object is in the place of one that does not fit.
func (s shaper) fitList(value any, of reflect.Type, field string) (fitting any, ok bool) {
	list, is := value.([]any)
	switch elem := of.Elem().Kind(); {
	case is:
	case elem == reflect.String:
		s.report(field, fmt.Errorf("%s instead of list", kindOf(value)))
		list = []any{value}
		if _, is := value.(string); !is {
			text, _ := json.Marshal(value) // It was JSON.
			list[0] = string(text)
		}
	default:
		return s.lose(field, fmt.Errorf("%s instead of list", kindOf(value)))
	}
	for i, v := range list {
		if list[i], ok = s.fit(v, of.Elem(), item(field, i)); !ok || v == nil {
			list[i] = reflect.Zero(of.Elem()).Interface()
		}
	}
	return list, true
}

// kindOf names the type of a decoded value as JSON does.
func kindOf(value any) string {
	switch value.(type) {
	case nil:
		return "null"
	case string:
		return "string"
	case bool:
		return "bool"
	case []any:
		return "list"
	case map[string]any:
		return "object"
	}
	return "number"
}

// strictField splits an error of strict decoding.
func strictField(err error) (field string, _ error) {
	if f, ok := err.(strictjson.FieldError); ok {
		field = f.FieldPath()
	}
	reason, _, _ := strings.Cut(err.Error(), " \"")
	return field, errors.New(reason)
}

// word is a field that takes a few words only.
type word struct {
	field, given string
	set          func(string)
	want         []string
	// judged says that the conversion reports other words.
	judged bool
}

func wordOf[T ~string](field string, p *T, want ...T) word {
	if p == nil {
		return word{}
	}
	w := word{field: field, given: string(*p), set: func(text string) { *p = T(text) }}
	for _, t := range want {
		w.want = append(w.want, string(t))
	}
	return w
}

func judgedWordOf[T ~string](field string, p *T, want ...T) word {
	w := wordOf(field, p, want...)
	w.judged = true
	return w
}

// spell corrects words that are wrong in their case only, and reports all that an API server refuses.
func spell(words []word, report func(field string, err error)) {
	for _, w := range words {
		if w.given == "" || slices.Contains(w.want, w.given) {
			continue
		}
		right := slices.IndexFunc(w.want, func(want string) bool { return strings.EqualFold(want, w.given) })
		switch {
		case right >= 0:
			report(w.field, &ValueError{Value: w.given, Reason: "want " + w.want[right] + ", for which it is taken"})
			w.set(w.want[right])
		case !w.judged:
			report(w.field, &ValueError{Value: w.given, Reason: "want " + strings.Join(w.want, ", ")})
		}
	}
}

// misfits reports what an API server refuses in a Service though each field is good by itself. It is served as it says.
func misfits(s *corev1.Service, report func(field string, err error)) {
	spec := &s.Spec
	inside := spec.Type == "" || spec.Type == corev1.ServiceTypeClusterIP
	if spec.Type == corev1.ServiceTypeExternalName {
		return
	}
	if len(spec.Ports) == 0 && spec.ClusterIP != corev1.ClusterIPNone {
		report("spec.ports", errors.New("none: nothing is served"))
	}
	if inside && len(spec.ExternalIPs) == 0 && spec.ExternalTrafficPolicy != "" {
		report("spec.externalTrafficPolicy", &ValueError{Value: string(spec.ExternalTrafficPolicy), Reason: "it has no " +
			"effect: by its type, and without externalIPs, the Service has no address for clients outside"})
	}
	names := map[string]bool{}
	for i := range spec.Ports {
		p := &spec.Ports[i]
		if p.NodePort != 0 && inside {
			report(item("spec.ports", i)+".nodePort", &ValueError{Value: strconv.Itoa(int(p.NodePort)), Reason: "an API " +
				"server wants the type NodePort or LoadBalancer for it; it is served"})
		}
		if names[p.Name] || p.Name == "" && len(spec.Ports) > 1 {
			report(item("spec.ports", i)+".name", &ValueError{Value: p.Name, Reason: "each of several ports wants a name of " +
				"its own: the ports of EndpointSlices are found by it"})
		}
		names[p.Name] = true
	}
}

// serviceWords are the words of a Service.
func serviceWords(s *corev1.Service) []word {
	spec, local, cluster := &s.Spec, corev1.ServiceExternalTrafficPolicyLocal, corev1.ServiceExternalTrafficPolicyCluster
	list := []word{
		wordOf("spec.type", &spec.Type, corev1.ServiceTypeClusterIP, corev1.ServiceTypeNodePort,
			corev1.ServiceTypeLoadBalancer, corev1.ServiceTypeExternalName),
		judgedWordOf("spec.externalTrafficPolicy", &spec.ExternalTrafficPolicy, cluster, local),
		judgedWordOf("spec.internalTrafficPolicy", spec.InternalTrafficPolicy, corev1.ServiceInternalTrafficPolicyCluster,
			corev1.ServiceInternalTrafficPolicyLocal),
		judgedWordOf("spec.sessionAffinity", &spec.SessionAffinity, corev1.ServiceAffinityClientIP,
			corev1.ServiceAffinityNone),
		wordOf("spec.ipFamilyPolicy", spec.IPFamilyPolicy, corev1.IPFamilyPolicySingleStack,
			corev1.IPFamilyPolicyPreferDualStack, corev1.IPFamilyPolicyRequireDualStack),
		judgedWordOf("spec.clusterIP", &spec.ClusterIP, corev1.ClusterIPNone),
	}
	for i := range spec.IPFamilies {
		list = append(list, wordOf(item("spec.ipFamilies", i), &spec.IPFamilies[i], corev1.IPv4Protocol, corev1.IPv6Protocol))
	}
	for i := range spec.Ports {
		list = append(list, protocolWord(item("spec.ports", i), &spec.Ports[i].Protocol))
	}
	for i := range s.Status.LoadBalancer.Ingress {
		mode := s.Status.LoadBalancer.Ingress[i].IPMode
		list = append(list, wordOf(item("status.loadBalancer.ingress", i)+".ipMode", mode, corev1.LoadBalancerIPModeVIP,
			corev1.LoadBalancerIPModeProxy))
	}
	return list
}

func protocolWord(port string, p *corev1.Protocol) word {
	return judgedWordOf(port+".protocol", p, corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP)
}

// nodeWords are the words of a Node.
func nodeWords(n *corev1.Node) []word {
	var list []word
	for i := range n.Status.Addresses {
		list = append(list, wordOf(item("status.addresses", i)+".type", &n.Status.Addresses[i].Type, corev1.NodeHostName,
			corev1.NodeInternalIP, corev1.NodeExternalIP, corev1.NodeInternalDNS, corev1.NodeExternalDNS))
	}
	return list
}

// sliceWords are the words of an EndpointSlice.
func sliceWords(s *discoveryv1.EndpointSlice) []word {
	list := []word{judgedWordOf("addressType", &s.AddressType, discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6,
		discoveryv1.AddressTypeFQDN)}
	for i := range s.Ports {
		list = append(list, protocolWord(item("ports", i), s.Ports[i].Protocol))
	}
	return list
}
