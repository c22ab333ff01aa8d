package control

import (
	"fmt"
	"slices"
	"strings"

	"nftproxy/bench/result"
)

// Size is how many Services there are, and how many endpoints each has.
type Size struct {
	Name     string
	Services int
	// Endpoints is the average number of endpoints of a Service.
	Endpoints int
	// LoadBalancer makes each Service have a node port and two ingress
	// addresses beside its cluster IP.
	LoadBalancer bool
}

func name(s Size) string {
	text := result.Count(s.Services) + "x" + result.Count(s.Endpoints)
	if s.LoadBalancer {
		text += " LB"
	}
	return text
}

// Find returns the size of a name of the form 100x10 or 100x10 LB, with or without commas.
func Find(text string) (Size, error) {
	var s Size
	rest, balanced := strings.CutSuffix(strings.ReplaceAll(text, ",", ""), " LB")
	if _, err := fmt.Sscanf(rest, "%dx%d", &s.Services, &s.Endpoints); err != nil || s.Services < 1 || s.Endpoints < 1 {
		return s, fmt.Errorf("size %q: want the number of services and that of endpoints of each, such as 1000x10", text)
	}
	s.LoadBalancer = balanced
	if s.Services > maxServices || s.Services*s.Endpoints > maxEndpoints {
		return s, fmt.Errorf("size %q: at most %d services and %d endpoints", text, maxServices, maxEndpoints)
	}
	s.Name = name(s)
	return s, nil
}

// The most for which there are addresses.
const (
	maxServices  = 1 << 16
	maxEndpoints = 1 << 21
)

// endpointsOf returns the number of endpoints of a Service. As in real clusters some
// Services have more and some have fewer; the average is the given number.
func (s Size) endpointsOf(service int) int {
	if s.Services == 1 {
		return s.Endpoints
	}
	spread := min(2, s.Endpoints/3)
	return s.Endpoints - spread + service%(2*spread+1)
}

// total is the number of all endpoints.
func (s Size) total() int {
	n := 0
	for i := range s.Services {
		n += s.endpointsOf(i)
	}
	return n
}

// entries returns how many addresses of Services and endpoints a proxy has to know. Sizes
// are compared by this number.
func (s Size) entries() int {
	addresses := 1
	if s.LoadBalancer {
		addresses += 3 // a node port and two ingress addresses
	}
	return s.Services*addresses + s.total()
}

// cell returns a cell for a measurement, without values.
func (s Size) cell(question, backend, unit string) result.Cell {
	return result.Cell{Question: question, Backend: backend, Size: s.Name, Services: s.Services, Endpoints: s.total(),
		Unit: unit}
}

// spread lists count Services, evenly from the first to the last. If there are fewer than
// count, it lists some of them again.
func (s Size) spread(count int) []int {
	var list []int
	for k := range count {
		list = append(list, k*s.Services/count)
	}
	return slices.Clip(list)
}
