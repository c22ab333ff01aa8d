package result

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// series is what one backend did, by the number on the horizontal axis: of Services, or
// of what else the claim says.
type series struct {
	backend string
	unit    string
	points  []point // in the order of the numbers
	gaps    []gap   // likewise
}

// point is a figure.
type point struct {
	number int
	value  float64
	// over says that the value is a limit, and that the backend exceeded it.
	over bool
}

// gap is a number with which there is no figure.
type gap struct {
	number int
	why    string
}

// perService is the number of endpoints of each Service in all pictures of the
// control plane: a line must not join clusters of different shape.
const perService = 10

// onAxis says whether a cell belongs on the axis of a picture: the data plane
// does not count endpoints.
func onAxis(c *Cell) bool {
	return c.Endpoints == 0 || strings.HasSuffix(c.Size, fmt.Sprintf("x%d", perService))
}

// newSeries collects the figures of a backend; it says false if there are none and
// nothing says why.
func newSeries(cells []Cell, backend, key string) (series, bool) {
	s := series{backend: backend}
	for i := range cells {
		c := &cells[i]
		if c.Backend != backend || !onAxis(c) {
			continue
		}
		if v := c.Values[key]; c.Failed == "" && v > 0 {
			s.points = append(s.points, point{number: c.Services, value: v, over: c.Over})
			s.unit = c.Unit
		} else {
			s.gaps = append(s.gaps, gap{number: c.Services, why: reason(c)})
		}
	}
	slices.SortFunc(s.points, func(a, b point) int { return cmp.Compare(a.number, b.number) })
	slices.SortFunc(s.gaps, func(a, b gap) int { return cmp.Compare(a.number, b.number) })
	return s, len(s.points)+len(s.gaps) > 0
}

// at is the figure with a number, or nil.
func (s *series) at(number int) *point {
	for i := range s.points {
		if s.points[i].number == number {
			return &s.points[i]
		}
	}
	return nil
}

func (s *series) text(p *point) string {
	text := amount(p.value, s.unit)
	if p.over {
		text = "more than " + text
	}
	return text
}

// describe says all of it in a sentence, for those who do not see the picture. The
// words stand for what the numbers count.
func (s *series) describe(things string) string {
	var words []string
	for i := range s.points {
		p := &s.points[i]
		words = append(words, fmt.Sprintf("%s with %s %s", s.text(p), Count(p.number), things))
	}
	for _, g := range s.gaps {
		words = append(words, fmt.Sprintf("%s with %s %s", g.why, Count(g.number), things))
	}
	return s.backend + ": " + strings.Join(words, ", ") + "."
}

// label says what the backend did with a number.
func (s *series) label(number int) string {
	if p := s.at(number); p != nil {
		return s.text(p) + " at " + Count(number)
	}
	if why := s.gapAt(number); why != "" {
		return why
	}
	return "not measured"
}

// gapAt says why there is no figure with a number; "" if nothing says it.
func (s *series) gapAt(number int) string {
	for _, g := range s.gaps {
		if g.number == number {
			return g.why
		}
	}
	return ""
}
