// Package spelling finds the word that somebody meant who mistyped one, among those that there are.
package spelling

import (
	"strings"
	"unicode/utf8"
)

// longest is how many letters a word may have that is compared, and most how many of them may be wrong.
const (
	longest = 80
	most    = 2
)

// DidYouMean is "did you mean CANDIDATE? " for the nearest candidate, and empty if there is none.
func DidYouMean(word string, candidates []string) string {
	if near := Nearest(word, candidates); near != "" {
		return "did you mean " + near + "? "
	}
	return ""
}

// Nearest returns the candidate that the word was meant to be: one in another case, or one that few letters make of it,
// which are missing, too many, others, or two that have changed places. It is empty if none is that near. Of equally
// near ones it is the first.
func Nearest(word string, candidates []string) string {
	best, least := "", 0
	length, lower := utf8.RuneCountInString(word), strings.ToLower(word)
	for _, c := range candidates {
		if strings.EqualFold(c, word) {
			return c
		}
		if n := utf8.RuneCountInString(c) - length; max(n, -n) > allowed(word, c) {
			continue // A cheap answer for nearly all words: each letter of the difference is one that is wrong.
		}
		if n := distance(lower, strings.ToLower(c)); n <= allowed(word, c) && (best == "" || n < least) {
			best, least = c, n
		}
	}
	return best
}

// allowed is how many letters may be wrong. A word of two letters may have one more at its end.
func allowed(word, candidate string) int {
	switch n := utf8.RuneCountInString(candidate); {
	case n == 2 && strings.HasPrefix(strings.ToLower(word), strings.ToLower(candidate)):
		return 1
	case n < 3:
		return 0
	case n < 6:
		return 1
	}
	return most
}

// distance is the number of letters to insert, remove or replace, and of neighbours to exchange (optimal string
// alignment); more than most if there are more. What lies further apart than that need not be compared, so the cost
// grows with the length of the words.
func distance(a, b string) int {
	const far = most + 1
	if len(a) > longest || len(b) > longest {
		return far
	}
	var letters [2][longest]rune
	from, to := letters[0][:0], letters[1][:0]
	for _, r := range a {
		from = append(from, r)
	}
	for _, r := range b {
		to = append(to, r)
	}
	if n := len(from) - len(to); max(n, -n) > most {
		return far
	}
	var rows [3][longest + 1]int
	before, last, row := &rows[0], &rows[1], &rows[2]
	for j := range to {
		row[j+1] = j + 1
	}
	for i := range from {
		before, last, row = last, row, before
		first, end := max(0, i-most), min(len(to), i+most+1)
		row[first] = min(i+1, far)
		for j := first; j < end; j++ {
			cost := 1
			if from[i] == to[j] {
				cost = 0
			}
			row[j+1] = min(last[j+1]+1, row[j]+1, last[j]+cost, far)
			if i > 0 && j > 0 && from[i] == to[j-1] && from[i-1] == to[j] {
				row[j+1] = min(row[j+1], before[j-1]+1)
			}
		}
		if end < len(to) {
			row[end+1] = far
		}
	}
	return row[len(to)]
}
