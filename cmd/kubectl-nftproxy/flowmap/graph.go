package flowmap

import (
	"cmp"
	"math"
	"slices"

	"nftproxy/model/flows"
	"nftproxy/model/printable"
)

// Picture is what is drawn.
type Picture struct {
	Title string
	Links []Link
	// Notes say what is not in the picture.
	Notes []string
}

// The columns of a picture.
const (
	clientColumn = iota
	serviceColumn
	endpointColumn
	columns
)

// node is a box. Its edges are indices.
type node struct {
	text    string
	in, out []int
}

// edge leads from a client to a Service, or from a Service to an endpoint. from and to are indices of nodes in their
// columns, and column is that of from.
type edge struct {
	column, from, to int
	flows.Stats
}

// graph has the links as two edges each: those of one client to a Service are one edge, whatever the endpoint.
type graph struct {
	nodes [columns][]node
	edges []edge
}

func newGraph(links []Link) *graph {
	g := &graph{}
	at := [columns]map[string]int{{}, {}, {}}
	place := func(column int, text string) int {
		i, known := at[column][text]
		if !known {
			i = len(g.nodes[column])
			at[column][text] = i
			g.nodes[column] = append(g.nodes[column], node{text: text})
		}
		return i
	}
	type ends struct{ column, from, to int }
	known := map[ends]int{}
	join := func(column, from, to int, s *flows.Stats) {
		key := ends{column, from, to}
		i, is := known[key]
		if !is {
			i = len(g.edges)
			known[key] = i
			g.edges = append(g.edges, edge{column: column, from: from, to: to})
			g.nodes[column][from].out = append(g.nodes[column][from].out, i)
			g.nodes[column+1][to].in = append(g.nodes[column+1][to].in, i)
		}
		g.edges[i].Join(s)
	}
	for i := range links {
		l := &links[i]
		client := place(clientColumn, l.Client.String())
		port := place(serviceColumn, l.Port.String())
		join(clientColumn, client, port, &l.Stats)
		if l.Endpoint != (Party{}) {
			join(serviceColumn, port, place(endpointColumn, l.Endpoint.String()), &l.Stats)
		}
	}
	return g
}

// sweeps is how often the columns are ordered by their neighbours. More change little.
const sweeps = 4

// arrange returns the order of the nodes in each column, in which edges cross seldom: each node stands at the mean of
// its neighbours (Sugiyama, Tagawa, Toda 1981). The Services go between both of their columns.
func (g *graph) arrange() (order [columns][]int) {
	var place [columns][]float64
	for c := range order {
		for i := range g.nodes[c] {
			order[c], place[c] = append(order[c], i), append(place[c], float64(i))
		}
	}
	for range sweeps {
		for _, c := range []int{serviceColumn, endpointColumn, serviceColumn, clientColumn} {
			g.sweep(c, order[c], &place)
		}
	}
	for c := range g.nodes {
		for i := range g.nodes[c] {
			n := &g.nodes[c][i]
			slices.SortStableFunc(n.in, func(a, b int) int {
				return cmp.Compare(place[c-1][g.edges[a].from], place[c-1][g.edges[b].from])
			})
			slices.SortStableFunc(n.out, func(a, b int) int {
				return cmp.Compare(place[c+1][g.edges[a].to], place[c+1][g.edges[b].to])
			})
		}
	}
	return order
}

// sweep orders one column. Places are from 0 to 1, so that long columns pull no more than short ones.
func (g *graph) sweep(column int, order []int, place *[columns][]float64) {
	mean := make([]float64, len(order))
	for i := range mean {
		n, sum := &g.nodes[column][i], 0.0
		for _, e := range n.in {
			sum += place[column-1][g.edges[e].from] / float64(len(place[column-1]))
		}
		for _, e := range n.out {
			sum += place[column+1][g.edges[e].to] / float64(len(place[column+1]))
		}
		mean[i] = sum / float64(max(1, len(n.in)+len(n.out)))
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(mean[a], mean[b]) })
	for position, i := range order {
		place[column][i] = float64(position)
	}
}

// The colours of edges, and what makes one fail or slow. Labels say the same in words.
const (
	plainColor  = "#46607a"
	slowColor   = "#b26a00"
	failedColor = "#c62828"

	slow    = 0.1  // seconds within which half are answered
	failing = 0.01 // share of failed ones
)

func color(s *flows.Stats) string {
	half, _ := s.Answer(0.5)
	switch {
	case s.FailedShare() >= failing:
		return failedColor
	case half.Seconds() >= slow:
		return slowColor
	}
	return plainColor
}

// thickness grows with the logarithm of the rate, from 1 to 6.
func thickness(s *flows.Stats) float64 {
	return math.Round(10*min(6, 1+1.2*math.Log10(1+s.PerSecond))) / 10
}

// longest is how much of a name is drawn, in characters.
const longest = 56

// short leaves out the middle of a text that is too long, and escapes what does not print.
func short(text string) string {
	letters := []rune(printable.Text(text))
	if len(letters) <= longest {
		return string(letters)
	}
	return string(letters[:longest/2]) + "…" + string(letters[len(letters)-longest/2+1:])
}
