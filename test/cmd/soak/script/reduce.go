package script

import "slices"

// Reduce returns a short script that still fails, made of events of the given one, in
// their order. fails tells it of a script; it must be true of the given one. Reduce stops
// early when fails returns an error, and returns the shortest script until then.
//
// It is the algorithm ddmin: it leaves out ever smaller pieces. The first event, World,
// always stays.
func Reduce(events []Event, fails func([]Event) (bool, error)) ([]Event, error) {
	if len(events) == 0 {
		return events, nil
	}
	head, rest := events[:1], events[1:]
	for pieces := 2; len(rest) > 0; {
		size := (len(rest) + pieces - 1) / pieces
		found := false
		// From the end: what comes before the failure's cause matters more often.
		for end := len(rest); end > 0; end -= size {
			start := max(0, end-size)
			shorter := slices.Concat(rest[:start], rest[end:])
			still, err := fails(slices.Concat(head, shorter))
			if err != nil {
				return slices.Concat(head, rest), err
			}
			if still {
				rest, found = shorter, true
			}
		}
		switch {
		case found:
			pieces = max(2, min(pieces-1, len(rest)))
		case size == 1:
			return slices.Concat(head, rest), nil
		default:
			pieces = min(2*pieces, len(rest))
		}
	}
	return slices.Concat(head, rest), nil
}
