package kernel

import (
	"errors"
	"fmt"
	"strings"
	"syscall"

	"nftproxy/nft"
)

// ErrOutcomeUnknown says that some or all of a batch may be in the kernel although Apply
// returned an error. The caller has to read the tables again before it plans the next
// batch.
var ErrOutcomeUnknown = errors.New("outcome unknown")

// BatchError is the kernel's refusal of a batch.
type BatchError struct {
	// Errors has at least one item. The kernel goes on after a refused message, so these
	// are all refusals in the batch, up to the 256 that its queue holds. Of the elements
	// of one message it reports only the first.
	Errors []OpError
	// Partial says that some of the refused transaction is in the kernel, since it did not
	// fit one datagram (see Conn.Apply). Such an error matches ErrOutcomeUnknown.
	Partial bool
}

// OpError is the kernel's refusal of one operation.
type OpError struct {
	// Op is the operation, narrowed to the rule or the element that was refused.
	// It is nil for an error of the transaction as a whole.
	Op nft.Op
	// Element is the refused element, with the part that it belongs to; nil if
	// the error is not about one element, but about the set or the table.
	Element *nft.OwnedElement
	// Table is the table of the operation.
	Table nft.TableID
	// Errno is the kernel's nfnetlink.Answer.
	Errno syscall.Errno
	// Hint says what helps, if that is known.
	Hint string

	// located says that the kernel told where in the message the error is.
	located bool
}

// Error lists the first few refusals.
func (e *BatchError) Error() string {
	const most = 3
	var b strings.Builder
	for i := range e.Errors {
		if i == most {
			fmt.Fprintf(&b, "; and %d more", len(e.Errors)-most)
			break
		}
		if i > 0 {
			b.WriteString("; ")
		}
		b.WriteString(e.Errors[i].Error())
	}
	if e.Partial {
		b.WriteString(" (earlier transactions of the batch were made)")
	}
	return b.String()
}

// Unwrap yields the single errors.
func (e *BatchError) Unwrap() []error {
	errs := make([]error, 0, len(e.Errors)+1)
	for i := range e.Errors {
		errs = append(errs, &e.Errors[i])
	}
	if e.Partial {
		errs = append(errs, ErrOutcomeUnknown)
	}
	return errs
}

// Error is, for example, `add element ip nftproxy services { 10.96.0.10 . tcp .
// 53 : goto endpoints-2 } (default/dns): file exists`.
func (e *OpError) Error() string {
	var b strings.Builder
	if e.Op == nil {
		b.WriteString("transaction")
	} else {
		b.WriteString(summary(e.Op))
	}
	if e.Element != nil && e.Element.Part != "" {
		fmt.Fprintf(&b, " (%s)", e.Element.Part)
	}
	fmt.Fprintf(&b, ": %s", e.Errno.Error())
	if e.Hint != "" {
		fmt.Fprintf(&b, " (%s)", e.Hint)
	}
	return b.String()
}

// Unwrap returns the errno, so that errors.Is(err, unix.EEXIST) works.
func (e *OpError) Unwrap() error { return e.Errno }
