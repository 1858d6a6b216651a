package auth

import (
	"hash/maphash"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Tokens issues tokens and says who they belong to: the point where a kind of token is plugged in. Issue,
// Forget and Clear are called by apply; Resolve by any goroutine.
type Tokens interface {
	// Issue returns the token for a login of name. prefix is the random text that the proposer put into
	// the entry, index the entry's place in the log.
	Issue(name string, revision uint64, prefix string, index uint64) (string, error)
	// Resolve says who the token belongs to, and renews it.
	Resolve(t *Table, token string) (Identity, bool)
	// Forget makes the tokens of a user invalid.
	Forget(name string)
	// Clear makes all tokens invalid.
	Clear()
}

const tokenShards = 64

// SimpleTokens are random words in a table. A token lives for the TTL after its last use on this member.
type SimpleTokens struct {
	ttl    time.Duration    // fixed at NewSimpleTokens
	now    func() time.Time // likewise
	seed   maphash.Seed
	shards [tokenShards]tokenShard
}

// tokenShard is written by apply and by whoever uses a token; the mutex is held for a map access.
type tokenShard struct {
	mu     sync.Mutex
	tokens map[string]simpleToken
	sweep  time.Time // of the last removal of expired tokens
}

type simpleToken struct {
	user    string
	expires time.Time
}

// NewSimpleTokens makes an empty table. now is the clock by which tokens expire.
func NewSimpleTokens(ttl time.Duration, now func() time.Time) *SimpleTokens {
	s := &SimpleTokens{ttl: ttl, now: now, seed: maphash.MakeSeed()}
	for i := range s.shards {
		s.shards[i].tokens = map[string]simpleToken{}
	}
	return s
}

func (s *SimpleTokens) shard(token string) *tokenShard {
	return &s.shards[maphash.String(s.seed, token)%tokenShards]
}

// Issue returns prefix and index joined by a dot, as every member does for the same entry.
func (s *SimpleTokens) Issue(name string, _ uint64, prefix string, index uint64) (string, error) {
	token := prefix + "." + strconv.FormatUint(index, 10)
	now := s.now()
	sh := s.shard(token)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if now.Sub(sh.sweep) > s.ttl { // expired tokens go when new ones come, so nobody has to tick
		sh.sweep = now
		for k, v := range sh.tokens {
			if now.After(v.expires) {
				delete(sh.tokens, k)
			}
		}
	}
	sh.tokens[token] = simpleToken{name, now.Add(s.ttl)}
	return token, nil
}

// Resolve returns the token's user with the auth revision of t, the table at the request's arrival. A token that
// this member has not yet seen issued is unknown: see TokenIndex.
func (s *SimpleTokens) Resolve(t *Table, token string) (Identity, bool) {
	now := s.now()
	sh := s.shard(token)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	tok, ok := sh.tokens[token]
	if !ok {
		return Identity{}, false
	}
	if now.After(tok.expires) {
		delete(sh.tokens, token)
		return Identity{}, false
	}
	tok.expires = now.Add(s.ttl)
	sh.tokens[token] = tok
	return Identity{tok.user, t.revision}, true
}

// Forget makes the tokens of a user invalid.
func (s *SimpleTokens) Forget(name string) {
	for i := range s.shards {
		sh := &s.shards[i]
		sh.mu.Lock()
		for k, v := range sh.tokens {
			if v.user == name {
				delete(sh.tokens, k)
			}
		}
		sh.mu.Unlock()
	}
}

// Clear makes all tokens invalid.
func (s *SimpleTokens) Clear() {
	for i := range s.shards {
		sh := &s.shards[i]
		sh.mu.Lock()
		clear(sh.tokens)
		sh.mu.Unlock()
	}
}

// TokenIndex is the log index in a simple token: whoever resolves it waits until this member has applied that
// entry. ok is false for a token of another form, which is invalid at once.
//
// Rule: contract/client-api.md section 9.6.
func TokenIndex(token string) (index uint64, ok bool) {
	_, number, found := strings.Cut(token, ".")
	if !found {
		return 0, false
	}
	index, err := strconv.ParseUint(number, 10, 64)
	return index, err == nil
}
