package control

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"nftproxy/bench/result"
)

// answers puts the cells of one backend at one size, and knows which questions have none
// yet.
type answers struct {
	*run
	who   string
	given []string
}

func (a *answers) answer(c result.Cell) {
	a.given = append(a.given, c.Question)
	a.Put(c)
}

// missing gives each unanswered question a cell that says why.
func (a *answers) missing(questions []string, err error) {
	for _, q := range questions {
		if slices.Contains(a.given, q) {
			continue
		}
		c := a.cell(q, a.who, "")
		if errors.As(err, new(tooSlow)) {
			c.NotBegun(err)
		} else {
			c.Fail(err)
		}
		a.answer(c)
	}
}

// tooSlow is the error of a proxy that has no first program within a limit. The run then
// measures nothing else of that proxy.
type tooSlow struct {
	limit time.Duration
	// note says why the limit was shorter than usual; empty if it was not.
	note string
}

func (e tooSlow) Error() string {
	text := fmt.Sprintf("no first program within %v", e.limit)
	if e.note != "" {
		text += "; " + e.note
	}
	return text
}

// failures are the sizes at which backends had no first program within the whole limit.
type failures map[string][]Size

// hopeless divides the limit of a backend that has failed at an equal or smaller size.
// The backend is still tried.
const hopeless = 6

// limit returns how long a backend may take for its first program at a size, and why the
// limit is shorter than usual.
func (f failures) limit(whole time.Duration, backend string, s Size) (limit time.Duration, note string) {
	for _, failed := range f[backend] {
		if failed.entries() <= s.entries() {
			return whole / hopeless, fmt.Sprintf("at %s it had none within %v", failed.Name, whole)
		}
	}
	return whole, ""
}
