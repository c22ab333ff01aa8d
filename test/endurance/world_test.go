package endurance

import (
	"fmt"
	"math/rand/v2"
	"strings"
)

// worldSize is how many Services there are at most.
const worldSize = 200

// world makes random changes of Services and their endpoints on an API server.
type world struct {
	server *apiServer
	rng    *rand.Rand
	there  [worldSize]bool
}

func newWorld(server *apiServer, seed uint64) *world {
	w := &world{server: server, rng: rand.New(rand.NewPCG(seed, 0))}
	server.put("nodes", "node",
		`"metadata":{"name":"node","uid":"node","resourceVersion":"VERSION"},"spec":{"podCIDR":"10.0.0.0/8"}`)
	for i := range worldSize {
		w.putService(i)
		w.putSlice(i)
	}
	return w
}

// change makes one change: mostly of endpoints.
func (w *world) change() {
	i := w.rng.IntN(worldSize)
	switch dice := w.rng.IntN(10); {
	case !w.there[i]:
		w.putService(i)
	case dice == 0:
		w.there[i] = false
		w.server.put(services, serviceName(i), "")
	case dice == 1:
		w.putService(i)
	default:
		w.putSlice(i)
	}
}

func serviceName(i int) string { return fmt.Sprintf("service-%03d", i) }

// putService stores a Service with other properties than before. Some have chains and sets of their own.
func (w *world) putService(i int) {
	w.there[i] = true
	var more strings.Builder
	kind := "ClusterIP"
	if w.rng.IntN(4) == 0 {
		kind = "NodePort"
	}
	nodePort := ""
	if kind == "NodePort" {
		nodePort = fmt.Sprintf(`,"nodePort":%d`, 30000+i)
		if w.rng.IntN(2) == 0 {
			more.WriteString(`,"externalTrafficPolicy":"Local"`)
		}
	}
	if w.rng.IntN(5) == 0 {
		fmt.Fprintf(&more, `,"sessionAffinity":"ClientIP","sessionAffinityConfig":{"clientIP":{"timeoutSeconds":%d}}`,
			60*(1+w.rng.IntN(5)))
	}
	if w.rng.IntN(5) == 0 {
		more.WriteString(`,"internalTrafficPolicy":"Local"`)
	}
	w.server.put(services, serviceName(i),
		fmt.Sprintf(`"metadata":{"name":%q,"namespace":"default","uid":"s%d","resourceVersion":"VERSION"},`+
			`"spec":{"type":%q,"clusterIP":"172.30.0.%d","clusterIPs":["172.30.0.%d","fd30::%x"],"ipFamilies":["IPv4","IPv6"],`+
			`"ports":[{"name":"http","protocol":"TCP","port":%d,"targetPort":8080%s},{"name":"dns","protocol":"UDP",`+
			`"port":53,"targetPort":5353}]%s}`,
			serviceName(i), i, kind, i+1, i+1, i+1, 80+w.rng.IntN(3), nodePort, more.String()))
}

// putSlice stores the EndpointSlice of a Service with other endpoints.
func (w *world) putSlice(i int) {
	var list []string
	for e := range w.rng.IntN(8) {
		list = append(list, fmt.Sprintf(`{"addresses":["10.%d.%d.%d"],"conditions":{"ready":%t},"nodeName":"node-%d"}`,
			w.rng.IntN(4), i, e+1, w.rng.IntN(4) > 0, w.rng.IntN(3)))
	}
	w.server.put(slicesName, serviceName(i),
		fmt.Sprintf(
			`"metadata":{"name":%q,"namespace":"default","uid":"e%d","resourceVersion":"VERSION","labels":{"kubernetes.io/`+
				`service-name":%q}},`+
				`"addressType":"IPv4","endpoints":[%s],"ports":[{"name":"http","protocol":"TCP","port":8080},{"name":"dns",`+
				`"protocol":"UDP","port":5353}]`,
			serviceName(i), i, serviceName(i), strings.Join(list, ",")))
}
