package control

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"nftproxy/bench/result"
)

// answers hands over the cells of one backend at one size, and knows which
// questions have none yet.
type answers struct {
	*run
	who   string
	given []string
}

func (a *answers) answer(c result.Cell) {
	a.given = append(a.given, c.Question)
	a.Put(c)
}

// missing says why those of the questions that have no answer have none.
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

// tooSlow is the error of whoever has no first program within a limit: nothing
// else can be asked of it.
type tooSlow time.Duration

func (limit tooSlow) Error() string {
	return fmt.Sprintf("no first program within %v", time.Duration(limit))
}
