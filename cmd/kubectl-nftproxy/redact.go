package main

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"path"
	"regexp"
	"slices"
	"strings"
	"sync"
)

// redactor replaces addresses and names, each by the same word wherever it is. Which word that is depends on the order
// in which they are met, and says nothing of the name. It learns names from the JSON that it redacts, so files with
// names come before logs. It is safe for concurrent use.
type redactor struct {
	// wordLike finds what may be an address or a name.
	wordLike *regexp.Regexp
	// kept are names that every cluster has.
	kept []string

	mu sync.Mutex
	// kinds has the names to replace, with the kind of thing that each is the name of.
	kinds     map[string]string
	words     map[string]string
	addresses map[netip.Addr]netip.Addr
	// met counts what was replaced, by kind.
	met map[string]int
}

func newRedactor(kept ...string) *redactor {
	return &redactor{wordLike: regexp.MustCompile(`[0-9A-Za-z:._-]*[0-9A-Za-z:]`), kept: kept, kinds: map[string]string{},
		words: map[string]string{}, addresses: map[netip.Addr]netip.Addr{}, met: map[string]int{}}
}

// file redacts a file. Of JSON only values are replaced, since a Service may have the name of a field, and what is left
// out is left out whole. What is no JSON under such a name is refused.
func (r *redactor) file(name string, text []byte) ([]byte, error) {
	if path.Ext(name) != ".json" || len(text) == 0 {
		return []byte(r.text(string(text))), nil
	}
	var v any
	decoder := json.NewDecoder(strings.NewReader(string(text)))
	decoder.UseNumber()
	if err := decoder.Decode(&v); err != nil {
		return nil, fmt.Errorf("it cannot be redacted: %w", err)
	}
	r.mu.Lock()
	r.learn(v)
	r.mu.Unlock()
	return json.MarshalIndent(r.value("", v), "", "  ")
}

// leftOut are the fields that say whose cluster it is: labels, and identifiers of machines and clouds.
func leftOut() []string {
	return []string{"labels", "selector", "matchLabels", "nodeSelector", "affinity", "tolerations", "taints", "providerID",
		"machineID", "systemUUID", "bootID", "externalName", "hostname", "ownerReferences", "message"}
}

// vocabulary are the fields whose values are words of nftproxy or Kubernetes: a tenant may name a Service like one.
func vocabulary() []string {
	return []string{"apiVersion", "kind", "protocol", "state", "states", "fate", "family", "type", "addressType", "effect",
		"phase", "reason", "is", "internalTrafficPolicy", "externalTrafficPolicy"}
}

// learn learns the names in a value of JSON: of namespaces, Nodes, and what has a namespace.
func (r *redactor) learn(v any) {
	switch v := v.(type) {
	case []any:
		for _, item := range v {
			r.learn(item)
		}
	case map[string]any:
		if namespace, is := v["namespace"].(string); is {
			r.name(namespace, "namespace")
			for _, field := range []string{"name", "service"} {
				if name, is := v[field].(string); is && namespace != "" {
					r.name(name, "object")
				}
			}
		}
		for field, kind := range map[string]string{"nodeName": "node", "host": "node", "node": "node"} {
			if name, is := v[field].(string); is {
				r.name(name, kind)
			}
		}
		if status, is := v["status"].(map[string]any); is && status["nodeInfo"] != nil {
			r.learnNode(v, status)
		}
		for _, item := range v {
			r.learn(item)
		}
	}
}

// learnNode learns the name of a Node and its host names.
func (r *redactor) learnNode(node, status map[string]any) {
	if metadata, is := node["metadata"].(map[string]any); is {
		if name, is := metadata["name"].(string); is {
			r.name(name, "node")
		}
	}
	addresses, _ := status["addresses"].([]any)
	for _, a := range addresses {
		if a, is := a.(map[string]any); is {
			if name, is := a["address"].(string); is {
				r.name(name, "node")
			}
		}
	}
}

// name learns one name, unless it is an address or one that every cluster has.
func (r *redactor) name(name, kind string) {
	if _, err := netip.ParseAddr(name); err == nil || name == "" || slices.Contains(r.kept, name) || r.kinds[name] != "" {
		return
	}
	r.kinds[name] = kind
}

// node returns the word for a node's name.
func (r *redactor) node(name string) string {
	r.mu.Lock()
	r.name(name, "node")
	r.mu.Unlock()
	return r.text(name)
}

func (r *redactor) value(field string, v any) any {
	switch v := v.(type) {
	case string:
		if slices.Contains(vocabulary(), field) {
			return v
		}
		return r.text(v)
	case []any:
		for i := range v {
			v[i] = r.value(field, v[i])
		}
	case map[string]any:
		for _, field := range leftOut() {
			delete(v, field)
		}
		for field, value := range v {
			v[field] = r.value(field, value)
		}
	}
	return v
}

// text redacts a text.
func (r *redactor) text(s string) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.wordLike.ReplaceAllStringFunc(s, r.word)
}

// word replaces a word, or else the parts of it: ADDRESS:PORT, ADDRESS-ADDRESS, NAME.NAMESPACE.svc, NAME:PORT.
func (r *redactor) word(word string) string {
	if with, is := r.whole(word); is {
		return with
	}
	if strings.HasSuffix(word, ":") { // the end of a clause
		return r.word(strings.TrimSuffix(word, ":")) + ":"
	}
	if at, err := netip.ParseAddrPort(word); err == nil {
		return netip.AddrPortFrom(r.address(at.Addr()), at.Port()).String()
	}
	for _, separator := range []string{"-", ":", "."} {
		parts := strings.Split(word, separator)
		if len(parts) < 2 || separator == "-" && !slices.ContainsFunc(parts, isAddress) {
			continue
		}
		for i := range parts {
			parts[i] = r.word(parts[i])
		}
		return strings.Join(parts, separator)
	}
	return word
}

func isAddress(s string) bool {
	_, err := netip.ParseAddr(s)
	return err == nil
}

// whole replaces a word that is an address or a name.
func (r *redactor) whole(word string) (with string, is bool) {
	if a, err := netip.ParseAddr(word); err == nil {
		return r.address(a).String(), true
	}
	if with, known := r.words[word]; known {
		return with, true
	}
	kind := r.kinds[word]
	if kind == "" {
		return "", false
	}
	r.met[kind]++
	r.words[word] = fmt.Sprintf("%s-%d", kind, r.met[kind])
	return r.words[word], true
}

// address returns the address that stands for another one: of 198.18.0.0/15 (RFC 2544), then of 100.64.0.0/10, or of
// 2001:db8::/32.
func (r *redactor) address(a netip.Addr) netip.Addr {
	a = a.Unmap()
	if a.IsLoopback() || a.IsUnspecified() {
		return a
	}
	if with, known := r.addresses[a]; known {
		return with
	}
	var with netip.Addr
	if a.Is4() {
		r.met["ipv4"]++
		n, first := r.met["ipv4"], byte(198)
		second := 18 + byte(n>>16)
		if n >= 1<<17 {
			n -= 1 << 17
			first, second = 100, 64+byte(n>>16)%64
		}
		with = netip.AddrFrom4([4]byte{first, second, byte(n >> 8), byte(n)})
	} else {
		r.met["ipv6"]++
		n := r.met["ipv6"]
		with = netip.AddrFrom16([16]byte{0x20, 1, 0xd, 0xb8, 12: byte(n >> 24), 13: byte(n >> 16), 14: byte(n >> 8),
			15: byte(n)})
	}
	r.addresses[a] = with
	return with
}
