package health

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/pprof"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"
)

// ProcessPages are the pages on which components of Kubernetes tell about their own process, as kube-proxy 1.37 serves
// them beside its metrics: /configz, /flagz and /statusz, and with profiling /debug/pprof and /debug/flags/v.
type ProcessPages struct {
	Component, Version string
	Started            time.Time
	// Flags returns the values of all flags by name.
	Flags func() map[string]string
	// Configuration returns the object that /configz shows, and Group its API group.
	Configuration func() (any, error)
	Group         string
	// Profiling says whether the pages under /debug are there. Who reads them sees
	// the memory of the process, and can slow it down.
	Profiling bool
	// SetVerbosity sets the verbosity of the log. It is asked only with Profiling.
	SetVerbosity func(int)
}

// Install adds the pages to the mux. paths are the other paths there, for /statusz.
func (c *ProcessPages) Install(mux *http.ServeMux, paths ...string) {
	paths = append(slices.Clone(paths), "/configz", "/flagz", "/statusz")
	mux.HandleFunc("/configz", c.serveConfig)
	mux.HandleFunc("/flagz", structured{
		kind: "Flagz", component: c.Component, text: c.flagsText,
		fields: func(o *object) { o.Flags = c.Flags() },
	}.serve)
	mux.HandleFunc("/statusz", structured{
		kind: "Statusz", component: c.Component, text: func() string { return c.statusText(folders(paths)) },
		fields: func(o *object) { o.status = c.status(folders(paths)) },
	}.serve)
	if !c.Profiling {
		return
	}
	mux.HandleFunc("/debug/pprof", func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "/debug/pprof/", http.StatusFound)
	})
	mux.HandleFunc("/debug/pprof/", pprof.Index)
	mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	mux.HandleFunc("/debug/flags/v", c.serveVerbosity)
}

// serveConfig has the configuration under its group, as JSON.
func (c *ProcessPages) serveConfig(w http.ResponseWriter, _ *http.Request) {
	var body []byte
	object, err := c.Configuration()
	if err == nil {
		body, err = json.Marshal(map[string]any{c.Group: object})
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	_, _ = w.Write(body) // An error means that the client has gone.
}

// heading is the beginning of a page for people.
const heading = `
%s %s
Warning: This endpoint is not meant to be machine parseable, has no formatting compatibility guarantees and is for debugging purposes only.
`

func (c *ProcessPages) flagsText() string {
	var b strings.Builder
	fmt.Fprintf(&b, heading, c.Component, "flagz")
	flags := c.Flags()
	for _, name := range slices.Sorted(maps.Keys(flags)) {
		fmt.Fprintf(&b, "%s=%s\n", name, flags[name])
	}
	return b.String()
}

func (c *ProcessPages) status(paths []string) *status {
	return &status{
		StartTime: c.Started.UTC().Format(time.RFC3339), UptimeSeconds: int64(c.uptime().Seconds()),
		GoVersion: runtime.Version(), BinaryVersion: c.Version, Paths: paths,
	}
}

// uptime is never negative: the clock may have been set back.
func (c *ProcessPages) uptime() time.Duration { return max(0, time.Since(c.Started)) }

func (c *ProcessPages) statusText(paths []string) string {
	up := int64(c.uptime().Seconds())
	return fmt.Sprintf(heading, c.Component, "statusz") + fmt.Sprintf("\nStarted: %s\nUp: %d hr %02d min %02d sec\nGo "+
		"version: %s\nBinary version: %s\nPaths: %s\n",
		c.Started.Format(time.UnixDate), up/3600, up/60%60, up%60, runtime.Version(), c.Version, strings.Join(paths, " "))
}

// folders returns the first elements of the paths, each once and sorted.
func folders(paths []string) []string {
	var list []string
	for _, path := range paths {
		first, _, _ := strings.Cut(strings.TrimPrefix(path, "/"), "/")
		list = append(list, "/"+first)
	}
	slices.Sort(list)
	return slices.Compact(list)
}

// maxVerbosity is the length of the longest number that is read.
const maxVerbosity = 10

// serveVerbosity sets the verbosity to the number in the body of a PUT.
func (c *ProcessPages) serveVerbosity(w http.ResponseWriter, r *http.Request) {
	answer := func(code int, text string) {
		w.Header().Set("Content-Type", "text/plain")
		w.Header().Set("X-Content-Type-Options", "nosniff")
		w.WriteHeader(code)
		_, _ = fmt.Fprintln(w, text)
	}
	if r.Method != http.MethodPut {
		answer(http.StatusNotAcceptable, "unsupported http method")
		return
	}
	body, err := io.ReadAll(io.LimitReader(r.Body, maxVerbosity+1))
	if err != nil {
		answer(http.StatusBadRequest, "error reading request body: "+err.Error())
		return
	}
	text := string(body)
	n, err := strconv.Atoi(text)
	if err != nil || n < 0 || len(text) > maxVerbosity {
		answer(http.StatusBadRequest, fmt.Sprintf("the verbosity %.*q is not a number from 0 on", maxVerbosity, text))
		return
	}
	c.SetVerbosity(n)
	answer(http.StatusOK, "successfully set verbosity to "+text)
}
