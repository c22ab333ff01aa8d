package inspect_test

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"nftproxy/look/inspect"
	"nftproxy/model/service"
	"nftproxy/nft/ruleset"
	"nftproxy/test/gen"
)

// namedServices have one name in two namespaces, several ports, ranges of ports, and one of them two families.
const namedServices = `node node-1
service shop/web created 2026-01-01T00:00:00Z
  cluster-ip 10.96.0.10
  cluster-ip fd00:96::a
  port dns udp 53
  port dns-tcp tcp 53
  port http tcp 80 node-port 30080
service svc/web created 2026-01-01T00:00:00Z
  cluster-ip 10.96.0.11
  port - tcp 80
service test/ftp created 2026-01-01T00:00:00Z
  cluster-ip 10.96.0.12
  port - tcp ranges=6000-6999
service test/outside created 2026-01-01T00:00:00Z
  external-ip 198.51.100.7
  port http tcp 80
    endpoint 10.244.0.1:8080 node-1 ready serving
`

// TestTargets: the objects and the tables give the same address for a name, or the same reason why there is none.
func TestTargets(t *testing.T) {
	snapshot, err := gen.ReadSnapshot(strings.NewReader(namedServices))
	if err != nil {
		t.Fatal(err)
	}
	const table = "nftproxy"
	tables := inspect.NewTables(ruleset.Compile(ruleset.Config{Table: table}, snapshot).Model(), table, snapshot.Node)
	find := func(namespace, text, like string, objects bool) string {
		target, err := inspect.ParseTarget(namespace, text)
		if err != nil {
			return err.Error()
		}
		a, _ := netip.ParseAddr(like)
		to, protocol, err := target.InTables(tables, a)
		if objects {
			to, protocol, err = target.InObjects(&snapshot, "the tables", a)
		}
		if err != nil {
			return err.Error()
		}
		return to.String() + "/" + protocol.String()
	}
	for _, c := range [][4]string{
		{"shop", "web:http", "", "10.96.0.10:80/tcp"}, {"", "shop/web:80", "", "10.96.0.10:80/tcp"},
		{"", "svc/shop/web:53/udp", "", "10.96.0.10:53/udp"},
		{"shop", "service/web:dns-tcp", "fd00::1", "[fd00:96::a]:53/tcp"},
		{"", "svc/svc/web", "", "10.96.0.11:80/tcp"}, {"svc", "web", "203.0.113.1", "10.96.0.11:80/tcp"},
		{"svc", "web", "fd00::1", "no cluster IP of the client's family: [10.96.0.11]"},
		{"", "web:80", "", "several Services have that name: shop/web, svc/web: add -n NAMESPACE"},
		{"", "svc/web:80", "", "several Services have that name"}, // as with kubectl, svc is no namespace here
		{"shop", "web", "", "service shop/web has the ports dns 53/udp, dns-tcp 53/tcp, http 80/tcp: name one"},
		{"shop", "web:53", "", `2 of them are "53"`}, {"shop", "web:http/udp", "", `0 of them are "http"`},
		{"", "ftp:6500", "", "10.96.0.12:6500/tcp"}, {"", "ftp:7000", "", `0 of them are "7000"`},
		{"", "ftp", "", "has the ports 6000-6999/tcp: name one"},
		{"", "outside:80", "", "cluster IP"}, // It has none; the tables do not have it at all.
		{"", "wbe:80", "", `not in the tables: service "wbe" (did you mean web?)`},
		{"shop", "ftp", "", `not in the tables: service "shop/ftp"`},
		{"shop", "test/ftp", "", `"test/ftp" is not in the namespace "shop"`},
		{"", "shop/web:", "", "want the name or number of a port after the colon"},
		{"", "shop/web:80/", "", `protocol "": want tcp, udp or sctp`}, {"", "a/b/c", "", "is no name of a Service"},
		{"", "svc/", "", "is no name of a Service"}, {"", "/web", "", "is no name of a Service"},
		{"Shop", "web", "", `"Shop" is no name of a namespace`}, {"", "we\x1bb", "", `"we\x1bb" is no name of a Service`},
	} {
		for _, objects := range []bool{false, true} {
			if got := find(c[0], c[1], c[2], objects); !strings.Contains(got, c[3]) || strings.Contains(got, "\x1b") {
				t.Errorf("%q in %q by objects %t: %s, want %s", c[1], c[0], objects, got, c[3])
			}
		}
	}
}

// TestSelections: which Services a selection by names has, and what of it does not exist.
func TestSelections(t *testing.T) {
	have := []service.Name{"shop/cart", "shop/web", "test/web"}
	for _, c := range []struct {
		namespace string
		names     []string
		want      string
		unknown   string
	}{
		{"", nil, "shop/cart shop/web test/web", ""}, {"shop", nil, "shop/cart shop/web", ""},
		{"", []string{"web"}, "shop/web test/web", ""}, {"test", []string{"web"}, "test/web", ""},
		{"", []string{"svc/web", "shop/cart"}, "shop/cart shop/web test/web", ""}, {"nobody", nil, "", ""},
		{"test", []string{"web", "cart"}, "test/web", `not in X: service "test/cart"`},
		{"", []string{"crat", "test/wbe"}, "",
			`service "crat" (did you mean cart?), service "test/wbe" (did you mean test/web?)`},
	} {
		s, err := inspect.NewSelection(c.namespace, c.names)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, name := range have {
			if s.Has(name) {
				got = append(got, string(name))
			}
		}
		unknown := s.Unknown(slices.Values(have), "X")
		if strings.Join(got, " ") != c.want || (unknown != nil) != (c.unknown != "") ||
			unknown != nil && !strings.Contains(unknown.Error(), c.unknown) {
			t.Errorf("%q in %q: %q, unknown: %v; want %q, %q", c.names, c.namespace, got, unknown, c.want, c.unknown)
		}
	}
}
