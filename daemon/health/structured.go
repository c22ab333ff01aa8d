package health

import (
	"encoding/json"
	"net/http"
	"strings"

	"github.com/munnerz/goautoneg"
	"sigs.k8s.io/yaml"
)

// structured is a page as text and as an object of the API group config.k8s.io. The
// client chooses by its header Accept, such as
//
//	application/json;v=v1beta1;g=config.k8s.io;as=Flagz
//
// and gets text without one (KEP-4828, KEP-4827; k8s.io/apiserver/pkg/server/flagz).
type structured struct {
	kind, component string
	text            func() string
	// fields fills in what the kind has beside its metadata.
	fields func(*object)
}

// group is the API group of the objects. Of its versions the older is deprecated.
const (
	group      = "config.k8s.io"
	version    = "v1beta1"
	oldVersion = "v1alpha1"
)

// object is a Flagz or a Statusz.
type object struct {
	Kind       string            `json:"kind"`
	APIVersion string            `json:"apiVersion"`
	Metadata   metadata          `json:"metadata"`
	Flags      map[string]string `json:"flags,omitempty"`
	*status
}

type metadata struct {
	Name string `json:"name"`
}

// status is what a Statusz has beside its metadata.
type status struct {
	StartTime     string   `json:"startTime"`
	UptimeSeconds int64    `json:"uptimeSeconds"`
	GoVersion     string   `json:"goVersion"`
	BinaryVersion string   `json:"binaryVersion"`
	Paths         []string `json:"paths"`
}

// The media types that a page has, in the order in which they are tried for */*.
const (
	jsonType = "application/json"
	yamlType = "application/yaml"
	textType = "text/plain"
)

func (s structured) serve(w http.ResponseWriter, r *http.Request) {
	media, asked, ok := s.negotiate(r.Header.Get("Accept"))
	if !ok {
		notAcceptable(w)
		return
	}
	w.Header().Set("X-Content-Type-Options", "nosniff")
	if media == textType {
		w.Header().Set("Content-Type", textType+"; charset=utf-8")
		_, _ = w.Write([]byte(s.text())) // An error means that the client has gone.
		return
	}
	if asked == oldVersion {
		w.Header().Set("Warning", `299 - "This version of the `+strings.ToLower(s.kind)+
			` endpoint is deprecated. Please use a newer version."`)
	}
	o := object{Kind: s.kind, APIVersion: group + "/" + asked, Metadata: metadata{s.component}}
	s.fields(&o)
	marshal := func(v any) ([]byte, error) {
		text, err := json.Marshal(v)
		return append(text, '\n'), err
	}
	if media == yamlType {
		marshal = func(v any) ([]byte, error) { return yaml.Marshal(v) }
	}
	body, err := marshal(o)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", media)
	_, _ = w.Write(body)
}

// negotiate chooses by the first clause of the header, in the client's order, that a
// page can satisfy: text that is asked for as no object, or an object of a known version.
func (s structured) negotiate(accept string) (media, asked string, ok bool) {
	if strings.TrimSpace(accept) == "" {
		return textType, "", true
	}
	for _, clause := range goautoneg.ParseAccept(accept) {
		for _, media := range []string{jsonType, yamlType, textType} {
			kind, subkind, _ := strings.Cut(media, "/")
			if clause.Type != "*" && clause.Type != kind || clause.SubType != "*" && clause.SubType != subkind ||
				clause.Type == "*" && clause.SubType != "*" {
				continue
			}
			if asked, ok := s.allows(media, clause.Params); ok {
				return media, asked, true
			}
		}
	}
	return "", "", false
}

// allows says whether the page has the media type in the version that the parameters of a clause ask for.
func (s structured) allows(media string, params map[string]string) (asked string, ok bool) {
	as, asks := params["as"]
	g, asksGroup := params["g"]
	v, asksVersion := params["v"]
	if params["stream"] != "" || params["sv"] != "" {
		return "", false
	}
	if media == textType {
		return "", !asks && !asksGroup && !asksVersion
	}
	return v, as == s.kind && g == group && (v == version || v == oldVersion)
}

// notAcceptable answers as the API's servers do.
func notAcceptable(w http.ResponseWriter) {
	body, _ := json.Marshal(map[string]any{ // It has strings and a number only.
		"kind": "Status", "apiVersion": "v1", "metadata": struct{}{}, "status": "Failure",
		"message": "only the following media types are accepted: " + strings.Join([]string{jsonType, yamlType, textType},
			", "),
		"reason": "NotAcceptable", "code": http.StatusNotAcceptable,
	})
	w.Header().Set("Content-Type", jsonType)
	w.WriteHeader(http.StatusNotAcceptable)
	_, _ = w.Write(append(body, '\n'))
}
