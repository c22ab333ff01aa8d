package watch

import (
	"errors"
	"math/rand/v2"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

const (
	// firstPause and longestPause bound the pauses: they double from the one to the other.
	firstPause   = 400 * time.Millisecond
	longestPause = 8 * time.Second
	// longestWait bounds what a server may ask for. What an API server asks for is shorter (its priority and fairness asks
	// for 32 s at the most).
	longestWait = time.Minute
)

// pauses are the pauses between requests that fail or end soon. The zero value begins with the shortest.
type pauses struct {
	// tries is how many pauses there were since a watch was open for long.
	tries int
	// answered says that the server has answered since.
	answered bool
}

// next returns the pause after an error, or after a watch that ended soon (nil), at the most longest, or longer by what
// the server asks for (Retry-After).
func (p *pauses) next(err error, longest time.Duration) time.Duration {
	if errors.As(err, new(apierrors.APIStatus)) {
		p.answer()
	}
	const enough = 20 // doublings, for each longest
	d := min(firstPause<<min(p.tries, enough), longest)
	p.tries++
	seconds, _ := apierrors.SuggestsClientDelay(err)
	return jittered(d) + min(time.Duration(seconds)*time.Second, longestWait)
}

// answer begins with the shortest pause again at the first answer after an outage, also at a refusal: a server that
// starts refuses for a moment only.
func (p *pauses) answer() {
	if !p.answered {
		p.tries, p.answered = 0, true
	}
}

// jittered returns a random time of d/2 to d, so that the nodes of a cluster do not ask together.
func jittered(d time.Duration) time.Duration { return d/2 + rand.N(d/2) }
