package watch

import (
	"time"

	"golang.org/x/time/rate"

	"nftproxy/model/pace"
)

// These bound how many problems are reported. A user who may write objects can cause
// any number of them, on every node. So each namespace has a share of its own.
const (
	// namespaceBurst problems of one namespace are reported at once, and later one
	// in each namespacePeriod.
	namespaceBurst  = 10
	namespacePeriod = time.Minute
	// allBurst problems of all namespaces together are reported at once, and later
	// one in each allPeriod.
	allBurst  = 100
	allPeriod = 6 * time.Second
	// The other problems are counted and reported in one sentence. It comes after
	// summaryDelay, so that it has all those of one list, and at most once in each
	// summaryPeriod.
	summaryDelay  = time.Second
	summaryPeriod = time.Minute
)

// bounds chooses the problems that are reported. A nil *bounds reports all. It is not
// safe for concurrent use.
type bounds struct {
	namespaces map[string]*rate.Limiter
	all        *rate.Limiter
	omitted    *OmittedError
	// omittedIn has the namespaces of the omitted problems.
	omittedIn map[string]struct{}
	// next is the earliest time of the next summary.
	next time.Time
}

func newBounds() *bounds {
	return &bounds{namespaces: map[string]*rate.Limiter{}, all: rate.NewLimiter(rate.Every(allPeriod), allBurst)}
}

// admit returns the problems to report now. It admits every problem without an
// object: its source limits those itself.
func (b *bounds) admit(now time.Time, problems []Problem) []Problem {
	if b == nil {
		return problems
	}
	var admitted []Problem
	for _, p := range problems {
		if p.Object == (Object{}) || b.takeShare(now, p.Object.Namespace) {
			admitted = append(admitted, p)
		} else {
			b.omit(now, p)
		}
	}
	return admitted
}

// takeShare takes one problem from the share of the namespace and from that of all.
// It returns false where one of the two is used up.
func (b *bounds) takeShare(now time.Time, namespace string) bool {
	bucket := b.namespaces[namespace]
	if bucket == nil {
		bucket = rate.NewLimiter(rate.Every(namespacePeriod), namespaceBurst)
		b.namespaces[namespace] = bucket
	}
	return bucket.TokensAt(now) >= 1 && b.all.AllowN(now, 1) && bucket.AllowN(now, 1)
}

func (b *bounds) omit(now time.Time, p Problem) {
	if b.omitted == nil {
		b.omitted, b.omittedIn = &OmittedError{Kinds: map[string]int{}}, map[string]struct{}{}
		b.next = pace.Later(b.next, now.Add(summaryDelay))
	}
	b.omittedIn[p.Object.Namespace] = struct{}{}
	b.omitted.Kinds[p.Object.Kind]++
	b.omitted.Example = p
}

// summaryDue returns when the next summary is due; zero if there is none.
func (b *bounds) summaryDue() time.Time {
	if b == nil || b.omitted == nil {
		return time.Time{}
	}
	return b.next
}

// summary returns one problem that counts the omitted ones, or none before it is due.
// It forgets the namespaces that have their whole share again.
func (b *bounds) summary(now time.Time) []Problem {
	if at := b.summaryDue(); at.IsZero() || now.Before(at) {
		return nil
	}
	for namespace, bucket := range b.namespaces {
		if bucket.TokensAt(now) >= namespaceBurst {
			delete(b.namespaces, namespace)
		}
	}
	b.omitted.Namespaces = len(b.omittedIn)
	counted := Problem{Err: b.omitted}
	b.omitted, b.omittedIn, b.next = nil, nil, now.Add(summaryPeriod)
	return []Problem{counted}
}
