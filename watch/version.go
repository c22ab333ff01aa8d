package watch

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	apiversion "k8s.io/apimachinery/pkg/version"
)

// The minor releases 1.x of API servers that make test-skew runs nftproxy with.
const (
	OldestServer = 29
	NewestServer = 37
)

// MinorOf returns the minor release of an API server, 0 if it is unknown. Some providers write it as 30+.
func MinorOf(v apiversion.Info) int {
	if v.Major != "1" {
		return 0
	}
	n, _ := strconv.Atoi(strings.TrimRight(v.Minor, "+")) // 0 where it is no number
	return n
}

// OutsideRange says in words that an API server is older than those that nftproxy is made for; empty if it is not. A
// newer one has the same API: all that nftproxy reads is stable.
func OutsideRange(v apiversion.Info) string {
	if n := MinorOf(v); n >= OldestServer {
		return ""
	}
	return fmt.Sprintf("the API server is %s: nftproxy is made for 1.%d to 1.%d, and was tried with no older one",
		cmp.Or(v.GitVersion, "of an unknown version"), OldestServer, NewestServer)
}

// versionTimeout bounds the wait for an answer, which may begin with the search for an address.
const versionTimeout = lookupLimit + 10*time.Second

// ServerVersion asks the API server for its version.
func ServerVersion(ctx context.Context, client *Client) (apiversion.Info, error) {
	ctx, cancel := context.WithTimeout(ctx, versionTimeout)
	defer cancel()
	var info apiversion.Info
	body, err := client.core.Get().AbsPath("/version").Do(ctx).Raw()
	if err != nil {
		return info, err
	}
	if err := json.Unmarshal(body, &info); err != nil {
		return info, fmt.Errorf("read the API server's version: %w", err)
	}
	return info, nil
}
