// Package spelling finds the word that somebody meant who mistyped one, among those that there are.
package spelling

import (
	"strings"
	"unicode/utf8"
)

// Most bytes of a word that is compared: the cost grows with the square.
const longest = 80

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
	length := utf8.RuneCountInString(word)
	for _, c := range candidates {
		if strings.EqualFold(c, word) {
			return c
		}
		if n := utf8.RuneCountInString(c) - length; max(n, -n) > allowed(word, c) {
			continue // A cheap answer for nearly all words: each letter of the difference is one that is wrong.
		}
		if n := distance(strings.ToLower(word), strings.ToLower(c)); n <= allowed(word, c) && (best == "" || n < least) {
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
	return 2
}

// distance is the number of letters to insert, remove or replace, and of neighbours to exchange (optimal string
// alignment).
func distance(a, b string) int {
	if len(a) > longest || len(b) > longest {
		return longest
	}
	from, to := []rune(a), []rune(b)
	before, last, row := make([]int, len(to)+1), make([]int, len(to)+1), make([]int, len(to)+1)
	for j := range row {
		row[j] = j
	}
	for i := range from {
		before, last, row = last, row, before
		row[0] = i + 1
		for j := range to {
			cost := 1
			if from[i] == to[j] {
				cost = 0
			}
			row[j+1] = min(last[j+1]+1, row[j]+1, last[j]+cost)
			if i > 0 && j > 0 && from[i] == to[j-1] && from[i-1] == to[j] {
				row[j+1] = min(row[j+1], before[j-1]+1)
			}
		}
	}
	return row[len(to)]
}
