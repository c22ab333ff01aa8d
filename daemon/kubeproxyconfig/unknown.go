package kubeproxyconfig

import (
	"fmt"
	"reflect"
	"strings"
)

// unknownField says of an error of strict decoding that the field is ignored, and which field it may stand for. The
// error quotes the field's path.
func unknownField(err error, of reflect.Type) string {
	text := err.Error() + "; it is ignored"
	_, path, _ := strings.Cut(err.Error(), `"`)
	path = strings.TrimSuffix(path, `"`)
	dot := strings.LastIndexByte(path, '.') + 1
	section, name := path[:dot], path[dot:]
	best, least := "", 6
	for _, known := range fieldNames(of, "") {
		last := known[strings.LastIndexByte(known, '.')+1:]
		d := edits(strings.ToLower(name), strings.ToLower(last))
		if d > 2 || len(name) <= 2*d {
			continue
		}
		if d *= 2; section+last != known { // A field of the same section goes first.
			d++
		}
		if d < least {
			best, least = known, d
		}
	}
	if best == "" || best == path {
		return text
	}
	return fmt.Sprintf("%s: did you mean %s?", text, best)
}

// fieldNames are the paths of all fields of a type.
func fieldNames(of reflect.Type, prefix string) []string {
	var list []string
	for i := range of.NumField() {
		f := of.Field(i)
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		path := prefix + name
		if name != "" {
			list = append(list, path)
			path += "."
		}
		if f.Type.Kind() == reflect.Struct {
			list = append(list, fieldNames(f.Type, path)...)
		}
	}
	return list
}

// edits is the least number of letters to add, remove or change that turns one text into the other.
func edits(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			change := diagonal
			if a[i] != b[j] {
				change++
			}
			diagonal = row[j+1]
			row[j+1] = min(change, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
